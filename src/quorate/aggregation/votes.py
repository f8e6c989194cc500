"""Majority votes in groups of workers that compute the same batch: the rows that are bitwise equal, and the winners.

Rows may lie in pieces on several workers: each counts the pieces that differ, and the counts add up. So equality is
decided on the vectors themselves, not on digests reported by their senders.

Source: Chen, Wang, Charles and Papailiopoulos, "DRACO: Byzantine-resilient distributed training via redundant
gradients", ICML 2018, section 4 (repetition code).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_AS_WHOLE_NUMBERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Vote:
    """The result of the vote in one group."""

    voters: Sequence[int]
    """Places of rows that have a vector."""
    winners: Sequence[int]
    """Places of equal rows, more than half of the group; empty where there is no majority."""


def differing(rows: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """Return 1 for pairs of rows (n, c) in the same group that differ in any bit, else 0: (n, n; float64), on the CPU.

    Those of pieces of vectors add up; the sum is 0 where full vectors are equal. Cost: c comparisons for each pair.
    """
    bits = rows.contiguous().view(_AS_WHOLE_NUMBERS[rows.dtype.itemsize])
    differ = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for group in groups:
        for place, first in enumerate(group):
            for second in group[place + 1 :]:
                differ[first, second] = differ[second, first] = float(not torch.equal(bits[first], bits[second]))
    return differ


def vote(differ: Tensor, group: Sequence[int], votes: Sequence[bool]) -> Vote:
    """Return the vote of a group, in which the rows with `votes` count; equal rows, by `differ`, vote alike."""
    voters = [place for place in group if votes[place]]
    for voter in voters:
        alike = [other for other in voters if differ[voter, other] == 0]
        if 2 * len(alike) > len(group):
            return Vote(voters, alike)
    return Vote(voters, ())
