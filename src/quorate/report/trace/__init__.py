"""A run as a timeline for trace viewers."""
