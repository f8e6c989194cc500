"""Measured choices of how gradients are exchanged: the best parts, paired trials, and the rule that decides."""
