"""Models whose layers are computed one after another by several workers: pipelines."""
