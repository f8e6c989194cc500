"""`Adasum`: gradients that agree are averaged, and orthogonal gradients are added.

Idea: Two gradients a and b of a tensor become (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b. This is a itself if both
are equal, a + b if they are orthogonal, and a vector in between for other angles. More workers form a tree: first pairs
at distance 1, then 2, 4 and so on, the lower ranks first. They use vector halving and distance doubling: pairs exchange
halves, so each of 2 d workers holds one piece of their common vector. Scalar products are summed among them. Then the
pieces are gathered the same way back. Each tensor has its own factors. If P is r more than the largest power of two
below it, the first 2 r workers merge in pairs before that. Rank 1 sends its vector to rank 0, rank 3 to rank 2. A
gradient of zeros changes nothing. P equal gradients give the gradient itself, for any P; orthogonal ones give their
sum, P times the mean. The result replaces the mean and is not divided by anything: use the learning rate of one worker,
and do not scale it with P. Scaling all gradients scales the result, so a GradScaler works. Everything sent together
with the gradients is summed exactly.

Cost: Per worker, with P workers (a power of two) and n bytes in T tensors, 2 (P - 1) / P n bytes are sent. Scalar
products add 12 log2 P (log2 P + 1) T bytes. There are 2 log2 P + log2 P (log2 P + 1) / 2 messages, one after the other.
For other P, the formulas hold for the largest power of two below it, and a worker that is paired sends n more. Three
products of vectors for each merge, in float64. No memory from one step to the next. After a death every gradient goes
to every worker, and each forms the tree over the remaining workers.

When it loses: With few workers and gradients that agree: it is the mean at a higher cost. With noise: gradients are
orthogonal by chance and steps are P times as long, so learning rates have to be lower than for the mean. Many small
tensors make many scalar products. On one host the mean is formed in shared memory, and Adasum is not.

Paper: Maleki et al., "Scaling distributed training with adaptive summation", MLSys 2021 (arXiv 2006.02924), after
public descriptions: the rule for two gradients, its tree, one result per layer, and vector halving. The order if P is
not a power of two is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quorate.core.contracts import Wire, Work
from quorate.core.vectors import segments_by_part
from quorate.means.algorithms.steps import power_of_two
from quorate.means.reducer import Reducer
from quorate.wire.cut import all_reduce_bytes
from quorate.wire.work import Together

if TYPE_CHECKING:
    from torch import Tensor

    from quorate.core.vectors import Flat, Layout


class Adasum(Reducer):
    """The adaptive sum of the tensors of all workers, and the plain sum of their headers."""

    def __init__(self, layout: Layout, wire: Wire) -> None:
        from quorate.means.algorithms.adaptive_sums import AdaptiveSums  # loads torch

        super().__init__(layout, wire)
        self._sums = AdaptiveSums(wire)
        self._ends = [_ends_of(layout, part) for part in range(len(layout.parts))]

    def part_ready(self, part: int, x: Tensor) -> None:
        self._under_way[part] = self.again(part, x)

    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        numbers = x.numel() - (self.layout.header if part == len(self.layout.parts) - 1 else 0)
        works: list[Work[Tensor]] = [self._sums.of(x[:numbers], self._ends[part])]
        if numbers < x.numel():
            works.append(self.wire.all_reduce(x[numbers:]))
        return Together(works, lambda parts: x, self.wire.clock)

    def factor(self, size: int, weight: float) -> float:
        """Return the number of workers, by which each has divided: the sum takes the place of the mean."""
        return float(size)

    def wire_bytes(self, size: int) -> int:
        """Return the bytes that this worker sends for one sum among `size` workers."""
        sent = 0
        for number, part in enumerate(self.layout.parts):
            header = self.layout.header if number == len(self.layout.parts) - 1 else 0
            if header:
                sent += all_reduce_bytes(header * part.dtype.itemsize, size)
            width = 2 if part.dtype.is_complex else 1
            each = max(4, part.dtype.itemsize // width)
            sent += _sent(width * (part.numel - header), each, len(self._ends[number]), size, self.wire.rank)
        return sent

    def sum_of(
        self, messages: Sequence[tuple[Tensor, ...]], ranks: Sequence[int], hosts: Sequence[int], like: Flat
    ) -> Flat:
        """Return the adaptive sum of `messages`, whose tree is over `ranks` in ascending order."""
        from quorate.core.vectors import Flat
        from quorate.means.algorithms.adaptive_sums import adaptive_sum
        from quorate.wire.exchange import sum_in_order

        order = sorted(range(len(ranks)), key=lambda place: ranks[place])
        sums = Flat.zeros(like.layout)
        for part, into in enumerate(sums.parts):
            column = [messages[place][part].to(into.device) for place in order]
            numbers = into.numel() - (like.layout.header if part == len(sums.parts) - 1 else 0)
            into[:numbers] = adaptive_sum([x[:numbers] for x in column], _ends_of(like.layout, part))
            if numbers < into.numel():
                into[numbers:] = sum_in_order([x[numbers:] for x in column], [hosts[place] for place in order])
        return sums


def _ends_of(layout: Layout, part: int) -> list[tuple[int, int]]:
    segments = [layout.segments[index] for index in segments_by_part(layout)[part]]
    return sorted((segment.offset, segment.offset + segment.numel) for segment in segments)


def _sent(numbers: int, each: int, tensors: int, size: int, rank: int) -> int:
    """Return the bytes that `rank` sends of a part of `numbers` numbers of `each` bytes."""
    core = power_of_two(size)
    surplus = size - core
    if rank < 2 * surplus and rank % 2:
        return numbers * each
    place = rank // 2 if rank < 2 * surplus else rank - surplus
    sent = numbers * each if rank < 2 * surplus else 0
    distance, held, kept_halves = 1, numbers, list[int]()
    while distance < core:
        lower = held // 2
        kept = held - lower if place & distance else lower
        sent += (held - kept) * each + distance.bit_length() * 24 * tensors
        kept_halves.append(kept)
        held, distance = kept, 2 * distance
    return sent + sum(kept_halves) * each
