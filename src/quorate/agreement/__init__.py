"""The ways in which the workers of one optimizer agree: means of all, rounds, and exchanges with neighbours."""
