"""What a step took, whether gradients are finite and replicas equal, and who was asked to stop."""
