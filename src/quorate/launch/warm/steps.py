"""How many steps `timing` looks at."""

STEPS = 6
"""That a script has to make: one for memory, one more to warm up, and those that are timed."""
