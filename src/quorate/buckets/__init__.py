"""Few flat parts that hold many tensors, and gradients as they become ready."""
