"""Who trains: workers that die, and a replica for those that join."""
