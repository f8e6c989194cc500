"""The worker's side of rounds: what it gives to a quorum, what it takes, and what it keeps."""
