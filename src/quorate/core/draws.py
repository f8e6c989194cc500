"""Counter-based random numbers: pure functions of integers that name their purpose, equal on every worker."""

from __future__ import annotations

from functools import lru_cache

_MASK = 2**64 - 1
_EVERY_RANK = -1
_BELOW_ONE = 1 - 2**-53


def mixed(*numbers: int) -> int:
    """Return 64 well mixed bits for a tuple of integers: SplitMix64 (Steele, Lea and Flood, 2014), chained."""
    state = 0
    for number in numbers:
        state = (state + (number & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def uniform(*numbers: int) -> float:
    """Return a number strictly between 0 and 1 for a tuple of integers."""
    return min(((mixed(*numbers) >> 11) + 0.5) / 2**53, _BELOW_ONE)


def common_seed(seed: int, *purpose: int) -> int:
    """Return the seed of generators that draw the same numbers on every worker of a run with `seed`."""
    return mixed(seed, _EVERY_RANK, *purpose)


@lru_cache(maxsize=64)
def chosen(count: int, size: int, *numbers: int) -> frozenset[int]:
    """Return `count` different numbers of 0 to `size` − 1, every set equally likely, for a tuple of integers.

    The first `count` swaps of a Fisher-Yates shuffle. Time and memory grow with `count`, not with `size`.
    """
    moved: dict[int, int] = {}
    taken = []
    for place in range(count):
        other = place + mixed(*numbers, place) % (size - place)
        taken.append(moved.get(other, other))
        moved[other] = moved.get(place, place)
    return frozenset(taken)
