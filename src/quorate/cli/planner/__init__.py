"""`quorate plan`."""
