"""Rounds of replicas that several workers have in pieces."""
