"""Training on parameters in common memory."""
