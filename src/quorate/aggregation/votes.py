"""Majority votes in groups of workers that compute the same batch: which rows are bitwise equal, and which counts.

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
    """What became of the vote in one group."""

    voters: Sequence[int]
    """Places of rows that have a vector."""
    winners: Sequence[int]
    """Places of equal rows, more than half of the group; empty where there is no majority."""


def differing(rows: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """Of pairs of rows (n, c) in the same group, 1 where they differ in any bit: (n, n) in float64, on the CPU.

    Those of pieces of vectors add up; 0 is left where whole vectors are equal. Cost: c comparisons for each pair.
    """
    bits = rows.contiguous().view(_AS_WHOLE_NUMBERS[rows.dtype.itemsize])
    found = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for group in groups:
        for place, one in enumerate(group):
            for other in group[place + 1 :]:
                found[one, other] = found[other, one] = float(not torch.equal(bits[one], bits[other]))
    return found


def vote(differ: Tensor, group: Sequence[int], votes: Sequence[bool]) -> Vote:
    """The vote of a group, of which only those rows count that `votes` says; of those that differ in nothing."""
    voters = [place for place in group if votes[place]]
    for one in voters:
        alike = [other for other in voters if differ[one, other] == 0]
        if 2 * len(alike) > len(group):
            return Vote(voters, alike)
    return Vote(voters, ())
