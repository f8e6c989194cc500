"""The training loop around a strategy: `distribute`, what happens in a step, and pauses of all workers."""
