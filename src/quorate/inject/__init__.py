"""Injected lateness and failures: imbalance, pace and failures, read from one line of text."""
