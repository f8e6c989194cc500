"""Scripts that are written for torch's DistributedDataParallel, trained under a strategy without an edit."""
