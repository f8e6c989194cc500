"""Models whose state is spread over several workers, which form a replica together; strategies act between replicas."""
