"""Runs side by side: the grid of arms and seeds, and the script in which workloads are trained."""
