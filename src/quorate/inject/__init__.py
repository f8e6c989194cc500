"""Lateness on purpose: imbalance and pace, read from one line of text."""
