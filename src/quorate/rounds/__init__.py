"""Rounds: when a mean is formed and from whom. Numbered, in one total order, applied by everyone with the same bits."""
