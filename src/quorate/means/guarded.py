"""`Guarded`: a sum of gradients that leaves out a gradient which is out of proportion to the others.

Idea: With its vector each worker sends to all a sketch of it, a few hundred numbers. From the sketches all workers
find, with the same result, a worker whose gradient is absurd compared with its peers (`aggregation.peers`). The sum is
then formed again without that worker's vector and weight.

Cost: Two passes over the vector, a byte of memory for each number, and P - 1 messages of 2 KB; if a worker is left out,
one more sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from quorate.aggregation.outcome import Outcome
from quorate.aggregation.peers import NUMBERS, Peers, signs_of, sketch_of
from quorate.core.codec import Draw
from quorate.core.contracts import Work
from quorate.core.vectors import header_in
from quorate.means.centre import reals
from quorate.means.reducer import Reducer
from quorate.means.wrapped import Wrapped
from quorate.wire.work import Together

if TYPE_CHECKING:
    from torch import Tensor

    from quorate.core.vectors import Flat


class Guarded(Wrapped):
    """`inner` without absurd vectors: out of the sums if `skips`, else in them but reported in the outcome.

    All sums are of gradients; a worker without one has weight 0, the first number of its header.
    """

    def __init__(self, inner: Reducer, seed: int, *, skips: bool) -> None:
        super().__init__(inner)
        self._seed, self._skips = seed, skips
        self._peers, self._sketch = Peers(), torch.zeros(0, dtype=torch.float64)
        self._signs: dict[int, Tensor] = {}
        self._newest: Outcome | None = None

    @property
    def outcome(self) -> Outcome | None:
        return self._newest

    def part_ready(self, part: int, x: Tensor) -> None:
        self._see(part, x)
        super().part_ready(part, x)
        self._under_way[part] = None  # type: ignore[assignment]  # the inner one's

    def _see(self, part: int, x: Tensor) -> None:
        if not self._sketch.numel():
            self._sketch = torch.zeros(NUMBERS, dtype=torch.float64)
        is_last = part == len(self.layout.parts) - 1
        numbers = reals(x[: x.numel() - self.layout.header] if is_last else x)
        self._sketch += sketch_of(numbers, self._signs_of(part, numbers))

    def _signs_of(self, part: int, x: Tensor) -> Tensor:
        if part not in self._signs or len(self._signs[part]) != len(x):
            draw = Draw(seed=self._seed, part=part)
            self._signs[part] = signs_of(len(x), draw.generator(x.device, shared=True))
        return self._signs[part]

    def start(self, x: Flat, kept: Callable[[], Flat] | None = None) -> Work[Flat]:
        for part, tensor in enumerate(x.parts):
            if part not in self._under_way:
                self._see(part, tensor)
        self._under_way, sketch = {}, self._sketch
        self._sketch = torch.zeros(0, dtype=torch.float64)
        sent = torch.cat([reals(header_in(x))[:1].cpu().double() if x.layout.header else torch.ones(1), sketch])
        gathered = self.wire.all_gather(sent.double())
        summed = self._inner.start(x, kept)
        return Together([gathered, summed], lambda results: self._judged(x, kept, *results), self.wire.clock)

    def _judged(self, x: Flat, kept: Callable[[], Flat] | None, gathered: Sequence[Tensor], sums: Flat) -> Flat:
        sketches = torch.stack([sketch.cpu() for sketch in gathered])
        absurd = self._judge(sketches[:, 1:], sketches[:, 0], range(len(sketches)))
        if not (absurd and self._skips and kept is not None):
            return sums
        again = kept()
        if self.wire.rank in absurd:
            _empty(again)
        formed = self._inner.start(again, lambda: again).wait()
        for into, part in zip(x.parts, formed.parts, strict=True):
            into.copy_(part)
        return x

    def _judge(self, sketches: Tensor, weights: Tensor, ranks: Sequence[int]) -> list[int]:
        """Return the absurd ranks. Sketches are of vectors times `weights`: zero for a worker without a vector."""
        present = [place for place in range(len(ranks)) if weights[place] > 0]
        own = sketches[present] / weights[present].unsqueeze(1)
        absurd = self._peers.absurd(own, [ranks[place] for place in present])
        absent = [rank for place, rank in enumerate(ranks) if place not in present]
        size = self.wire.size
        self._newest = Outcome(absent=absent, absurd=absurd, is_told=not self._skips, weights=[1.0] * size)
        return absurd

    def kept(self, x: Flat) -> Callable[[], Flat]:
        copy = x.clone()
        return lambda: copy

    def abandon(self, x: Flat) -> Work[list[Any]]:
        self._under_way, self._sketch = {}, torch.zeros(0, dtype=torch.float64)
        return super().abandon(x)

    def wire_bytes(self, size: int) -> int | None:
        inner = super().wire_bytes(size)
        return None if inner is None else inner + (size - 1) * 8 * (1 + NUMBERS)

    def sum_of(
        self, messages: Sequence[tuple[Tensor, ...]], ranks: Sequence[int], hosts: Sequence[int], like: Flat
    ) -> Flat:
        """Return the sum of `messages`, if `skips` without those that are absurd."""
        sketches, weights = [], []
        for parts in messages:
            weights.append(reals(parts[-1][parts[-1].numel() - like.layout.header :])[:1].cpu().double())
            bare = [*parts[:-1], parts[-1][: parts[-1].numel() - like.layout.header]]
            each = (sketch_of(x, self._signs_of(part, x)) for part, x in enumerate(map(reals, bare)))
            sketches.append(torch.stack(list(each)).sum(0))
        absurd = self._judge(torch.stack(sketches), torch.cat(weights), ranks)
        places = [place for place, rank in enumerate(ranks) if not (self._skips and rank in absurd)]
        chosen = (
            [messages[place] for place in places],
            [ranks[place] for place in places],
            [hosts[place] for place in places],
        )
        return super().sum_of(*chosen, like)

    def follows(self, before: Reducer) -> None:
        super().follows(before)
        if isinstance(before, Guarded):
            self._peers = before._peers


def _empty(x: Flat) -> None:
    """Write zeros into all numbers of `x` and its weight; the other numbers of its header stay."""
    for part in x.bare().parts:
        part.zero_()
    if x.layout.header:
        header_in(x)[0] = 0.0
