"""The workers of one run on several hosts, reached over ssh: an agent on each starts its workers."""
