"""The records of runs, read: rows as objects, on one clock."""
