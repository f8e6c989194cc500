"""`quorate simulate`."""
