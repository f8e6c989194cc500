"""Runs started from Python and from notebooks, and shown there."""
