"""Streams: data that is read in order, and has no index."""
