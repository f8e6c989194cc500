"""Images of which several workers have some rows each, while layers are whole (spatial parallelism)."""
