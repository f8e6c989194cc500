"""Which quorum brings a training furthest."""
