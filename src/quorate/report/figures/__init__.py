"""The figures of runs."""
