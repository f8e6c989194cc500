"""What failures leave of a machine: goodput and uptime of learners of very many workers, by events alone; no torch."""
