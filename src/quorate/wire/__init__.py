"""Moving tensors and small messages between workers, real or virtual. Knows nothing of gradients or models."""
