"""Simulated failures: goodput and uptime of learners of very many workers, by events alone; no torch."""
