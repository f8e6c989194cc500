"""A board with a copy on every worker, so that it outlives any host: see docs/decisions/deaths-and-joins.md#0023."""
