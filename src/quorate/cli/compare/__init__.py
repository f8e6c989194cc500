"""`quorate compare`."""
