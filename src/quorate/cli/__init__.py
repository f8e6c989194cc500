"""The command line: one file per verb. Nothing here imports torch or numpy before a verb needs it."""
