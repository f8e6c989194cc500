"""A board that every worker keeps a copy of, so that it outlives any host: see docs/decisions/0023."""
