"""The best cut of a gradient into parts, by dynamic programming over measured ready times; pure.

Tensors 1 … L are ready at times r_1 ≤ … ≤ r_L and have s_i bytes. Parts (i, j] are sent one after the other, each once
it is complete, and occupy the wire for gap + bytes / bandwidth seconds. The earliest time at which the wire has sent
the first j tensors is

    E_j = min over i < j of  max(r_j, E_i) + gap + (S_j - S_i) / bandwidth,    E_0 = 0,  S_j = s_1 + … + s_j

The sum is there latency - gap later. The gap is the latency itself where a sum begins when the one before has ended. It
is less where latencies pass beside each other (LogGP: Alexandrov et al., SPAA 1995). An earlier E_i is never worse, so
the program is exact for one channel (Shi, Chu and Li, "MG-WFBP", INFOCOM 2019, merge tensors by a criterion instead). E
is monotone: where E_i ≤ r_j the largest such i is best, and among the others the one with the least E_i - S_i /
bandwidth, which a queue of minima has. So it takes O(L) time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LinkCosts:
    """The seconds of a sum of n bytes by itself: `latency` + n / `bandwidth`."""

    latency: float
    bandwidth: float
    """Bytes per second; infinity where size does not matter."""
    gap: float | None = None
    """Seconds for which a sum keeps the wire from the next one, beside those of its bytes; None: the latency."""

    @property
    def occupied(self) -> float:
        """The gap, which is at most the latency."""
        return self.latency if self.gap is None else min(self.gap, self.latency)


def costs_of(samples: Sequence[tuple[int, float]], gap: float | None = None) -> LinkCosts:
    """Return the costs that fit pairs of bytes and seconds (above 0), of at least two sizes, and a measured gap.

    Relative errors count: the squares of (latency + bytes / bandwidth) / seconds - 1 are least. A latency below 0
    becomes 0, and where larger sums take no longer, the bandwidth is infinite.
    """
    inverse = [(1 / seconds, nbytes / seconds) for nbytes, seconds in samples]
    aa, ab, bb = sum(a * a for a, _ in inverse), sum(a * b for a, b in inverse), sum(b * b for _, b in inverse)
    a, b = sum(a for a, _ in inverse), sum(b for _, b in inverse)
    determinant = aa * bb - ab * ab
    latency, per_byte = (a * bb - b * ab) / determinant, (aa * b - ab * a) / determinant
    if latency < 0:
        latency, per_byte = 0.0, b / bb
    if per_byte <= 0:
        return LinkCosts(a / aa, float("inf"), gap)
    return LinkCosts(latency, 1 / per_byte, gap)


def best_ends(ready: Sequence[float], sizes: Sequence[int], costs: LinkCosts) -> tuple[int, ...]:
    """Return where parts end for the earliest end of the exchange: the number of tensors up to each end, ascending.

    Args:
        ready: Seconds at which each tensor is ready, ascending.
        sizes: Bytes of each tensor.
        costs: The costs of the sum of a part.
    """
    count = len(ready)
    total, ends, before = [0.0] * (count + 1), [0.0] * (count + 1), [0] * (count + 1)
    for j, nbytes in enumerate(sizes, 1):
        total[j] = total[j - 1] + nbytes / costs.bandwidth
    waiting = deque[int]()
    """The i with E_i above r_j, by ascending E_i - S_i / bandwidth."""
    free = -1
    """The largest i with E_i at most r_j: the wire is free when tensor j is ready."""
    for j in range(1, count + 1):
        while waiting and ends[waiting[-1]] - total[waiting[-1]] >= ends[j - 1] - total[j - 1]:
            waiting.pop()
        waiting.append(j - 1)
        while free + 1 < j and ends[free + 1] <= ready[j - 1]:
            free += 1
        while waiting and waiting[0] <= free:
            waiting.popleft()
        choices = []
        if free >= 0:
            choices.append((ready[j - 1] - total[free], free))
        if waiting:
            choices.append((ends[waiting[0]] - total[waiting[0]], waiting[0]))
        least, before[j] = min(choices)
        ends[j] = least + costs.occupied + total[j]
    cuts = [count] if count else []
    while cuts and before[cuts[-1]]:
        cuts.append(before[cuts[-1]])
    return tuple(reversed(cuts))


def ends_by_size(sizes: Sequence[int], part_bytes: int, first_part_bytes: int) -> tuple[int, ...]:
    """Return where parts end that are full with the tensor that reaches `part_bytes`, as `buckets.flat` fills them."""
    ends, held = list[int](), 0
    for place, nbytes in enumerate(sizes, 1):
        held += nbytes
        if held >= (part_bytes if ends else first_part_bytes):
            ends.append(place)
            held = 0
    if not ends or ends[-1] < len(sizes):
        ends.append(len(sizes))
    return tuple(ends)


def end_of_exchange(
    ready: Sequence[float],
    sizes: Sequence[int],
    ends: Sequence[int],
    costs: LinkCosts,
    *,
    overlaps: bool = True,
    channels: int = 1,
) -> float:
    """Return the predicted second at which the last part is complete.

    Args:
        ready: Seconds at which each tensor is ready, in the order in which tensors are sent (ascending or not).
        sizes: Bytes of each tensor.
        ends: Where parts end: see `best_ends`.
        costs: The costs of the sum of a part.
        overlaps: Whether a part is sent once it is complete. Otherwise all parts are sent after the last tensor.
        channels: Parts that are under way at once, in turn. Their gaps pass beside each other, their bytes do not.
    """
    free, link, complete, begin = [0.0] * channels, 0.0, 0.0 if overlaps else max(ready, default=0.0), 0
    for number, end in enumerate(ends):
        complete = max(complete, *ready[begin:end])  # parts are sent in order
        channel = number % channels
        sent = max(complete, free[channel]) + costs.occupied
        link = free[channel] = max(sent, link) + sum(sizes[begin:end]) / costs.bandwidth
        begin = end
    return link + costs.latency - costs.occupied
