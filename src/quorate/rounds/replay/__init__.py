"""Rounds as they were recorded."""
