"""What several strategies are made of."""
