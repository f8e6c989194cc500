"""Observers of steps: their times, finite gradients, equal replicas, and requests to stop."""
