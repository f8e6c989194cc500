"""A script, unchanged, in virtual workers: one process, a simulated clock."""
