"""Training on parameters in memory that all workers of a host share."""
