"""Numbers drawn by counting: a pure function of what they are for, whoever asks first."""

from __future__ import annotations

_MASK = 2**64 - 1


def mixed(*numbers: int) -> int:
    """64 well mixed bits for a tuple of integers: SplitMix64 (Steele, Lea and Flood, 2014), chained."""
    state = 0
    for number in numbers:
        state = (state + (number & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def uniform(*numbers: int) -> float:
    """A number strictly between 0 and 1 for a tuple of integers."""
    return ((mixed(*numbers) >> 11) + 0.5) / 2**53
