"""Layers that several workers compute together, each some of their neurons and heads (tensor parallelism)."""
