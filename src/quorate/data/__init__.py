"""The examples that a worker computes, and the loader that passes them to the training loop."""
