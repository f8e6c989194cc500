"""Packing many tensors into few flat parts and back, and knowing when gradients are ready. Knows nothing of what is done with them."""
