"""Rounds from the side of a worker: its contributions to a quorum, the means that it applies, and its checkpoints."""
