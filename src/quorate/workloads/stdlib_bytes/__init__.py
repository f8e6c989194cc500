"""The standard library's source as a stream of bytes, for a small language model."""
