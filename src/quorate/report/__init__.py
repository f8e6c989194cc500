"""What was measured, for people and programs: read from the records of runs and from nothing else."""
