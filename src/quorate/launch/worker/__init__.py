"""A worker: how it joins, what a script sees of the others, and how it leaves."""
