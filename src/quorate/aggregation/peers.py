"""Gradients out of proportion to those of their peers, found by sketches over the last sums; pure.

A sketch is a linear map of a vector to a few hundred numbers that nearly preserves lengths and angles. The vector's
numbers are multiplied by random signs and added up in groups (Charikar, Chen and Farach-Colton, 2002). So one short
message from each worker tells all workers the lengths of all gradients and the angles between them.

A length is judged by its logarithm, relative to the median of the others in the same sum. The unit is how much lengths
have differed in the last sums (the median absolute deviation, z-scores as in Iglewicz and Hoaglin, 1993). It must also
be ten times the largest length of any other worker in these sums. Late in training a hard batch is rare and has a much
longer gradient than others. Agreement, the cosine between a gradient and the mean of the others, is judged in the same
way, averaged over a worker's last sums. Both also have to pass an absolute limit, so that workers whose gradients
hardly differ, or hardly agree, are not reported.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

NUMBERS = 256
"""Numbers of a sketch: angles are right to a sixteenth."""
_CHUNK = 1 << 18
_SUMS, _OWN = 50, 8
"""Number of sums that count; and that count for a worker's own agreement."""
_Z = 10.0
_LONGER, _FAR_LONGER = math.log(10.0), math.log(1000.0)
"""Least excess over the median of its peers to be absurd; and excess that is absurd however lengths differ."""
_AGAINST, _LESS = -0.2, 0.5
"""Largest agreement that is absurd; and its least difference from that of its peers."""
_LIKE_A_NORMAL = 1.4826


def signs_of(count: int, generator: torch.Generator) -> Tensor:
    """Return random signs, 1 or -1 (int8), for vectors of `count` numbers, on the generator's device."""
    drawn = torch.randint(0, 2, (count,), generator=generator, device=generator.device, dtype=torch.int8)
    return drawn.mul_(2).sub_(1)


def sketch_of(x: Tensor, signs: Tensor) -> Tensor:
    """Return the sketch (`NUMBERS`; float64 on the CPU) of a vector (n) of floats. Sketches of pieces, each with signs
    of its own, add up. Cost: two passes over the vector, a copy of 2^18 numbers at a time."""
    sketch = torch.zeros(NUMBERS, dtype=torch.float64)
    for piece, piece_signs in zip(x.split(_CHUNK), signs.split(_CHUNK), strict=True):
        turned = (piece if piece.dtype == torch.float64 else piece.float()) * piece_signs
        whole = len(turned) // NUMBERS * NUMBERS
        sketch += turned[:whole].view(-1, NUMBERS).sum(0).cpu().double()
        sketch[: len(turned) - whole] += turned[whole:].cpu().double()
    return sketch


class Peers:
    """Lengths and agreements of workers in the last sums. Equal sketches give equal results on all workers."""

    def __init__(self) -> None:
        self._lengths: deque[list[float]] = deque(maxlen=_SUMS)
        self._agreements: deque[list[float]] = deque(maxlen=_SUMS)
        self._norms: deque[dict[int, float]] = deque(maxlen=_SUMS)
        self._own: dict[int, deque[float]] = {}

    def absurd(self, sketches: Tensor, ranks: Sequence[int]) -> list[int]:
        """Return those of `ranks` whose gradients, with sketches (n, `NUMBERS`), are absurd or not finite; fewer than
        half of them, and none of fewer than three."""
        finite = [place for place in range(len(ranks)) if bool(torch.isfinite(sketches[place]).all())]
        absurd_ranks = {rank for place, rank in enumerate(ranks) if place not in finite}
        if len(finite) > 2:
            rows = sketches[finite]
            names = [ranks[place] for place in finite]
            absurd_ranks |= set(self._long(rows, names)) | set(self._against(rows, names))
        return sorted(absurd_ranks) if 2 * len(absurd_ranks) < len(ranks) and len(ranks) > 2 else []

    def _long(self, rows: Tensor, ranks: Sequence[int]) -> list[int]:
        logs = rows.norm(dim=1).clamp_min(1e-300).log()
        self._norms.append(dict(zip(ranks, logs.tolist(), strict=True)))
        off = [float(logs[place] - _without(logs, place).median()) for place in range(len(ranks))]
        spread = _spread([excess for sums in (*self._lengths, off) for excess in sums])
        self._lengths.append(off)
        bound = min(max(_Z * spread, _LONGER), _FAR_LONGER)
        return [
            rank
            for rank, excess in zip(ranks, off, strict=True)
            if excess > bound and self._norms[-1][rank] > self._longest_but(rank) + _LONGER
        ]

    def _longest_but(self, rank: int) -> float:
        """Return the largest length of any other worker in the last sums: hard batches are rare, and any worker's."""
        return max(length for sums in self._norms for other, length in sums.items() if other != rank)

    def _against(self, rows: Tensor, ranks: Sequence[int]) -> list[int]:
        unit = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
        cosines = []
        for place in range(len(ranks)):
            others = _without(unit, place).sum(0)
            cosines.append(float(unit[place] @ others / others.norm().clamp_min(1e-300)))
        all_cosines = [cosine for sums in (*self._agreements, cosines) for cosine in sums]
        usual, spread = float(torch.tensor(all_cosines).median()), _spread(all_cosines)
        self._agreements.append(cosines)
        ranks_against = []
        for rank, cosine in zip(ranks, cosines, strict=True):
            own = self._own.setdefault(rank, deque(maxlen=_OWN))
            own.append(cosine)
            mean = sum(own) / len(own)
            if len(own) == _OWN and mean < _AGAINST and mean < usual - max(_Z * spread / math.sqrt(_OWN), _LESS):
                ranks_against.append(rank)
        return ranks_against


def _without(x: Tensor, place: int) -> Tensor:
    return torch.cat([x[:place], x[place + 1 :]])


def _spread(numbers: Sequence[float]) -> float:
    """Return a standard deviation that outliers do not change."""
    known = torch.tensor(numbers, dtype=torch.float64)
    return _LIKE_A_NORMAL * float((known - known.median()).abs().median())
