"""Loggers of a run's numbers beside its records: one small interface, and a file for each tool of others."""
