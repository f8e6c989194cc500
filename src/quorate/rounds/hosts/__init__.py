"""The sum of a round that spans several hosts, and who forms what of it."""
