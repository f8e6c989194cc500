"""Which part of the data a worker computes, and the loader that gives it to the training loop."""
