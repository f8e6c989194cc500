"""Many runs one after the other, whose workers are forked from a process that has imported torch."""
