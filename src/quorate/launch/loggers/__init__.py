"""Where a run's numbers go beside its records: one small interface, and a file for each tool of others."""
