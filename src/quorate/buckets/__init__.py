"""Packing many tensors into few flat parts and back, and knowing when gradients are ready."""
