"""`Coded`: parts that a codec writes small; linear codes by an all-reduce, others by an all-gather, and decoded.

What a codec remembers advances when the next sum begins: a part that is summed again, or a sum that is formed anew
after a death, is encoded as if it had not been before. A part with a number that is not finite is not encoded: it comes
out as NaN on all workers, and nothing of it is remembered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quorate.core.codec import Codec, Draw, Memory, Shapes
from quorate.core.contracts import Wire, Work
from quorate.core.resize import kept
from quorate.core.vectors import Flat, Layout
from quorate.reducers.reducer import Reducer
from quorate.wire.cost import all_reduce_bytes
from quorate.wire.exchange import sum_in_order
from quorate.wire.work import Together


@dataclass(kw_only=True)
class CodedState:
    """What the codec of one worker remembers."""

    memory: dict[str, Flat] = kept("sum")
    """By the codec's name for it; what parts that are not coded have there stays 0."""
    sums: int = kept("same")
    """How many there have been: random numbers are drawn for each."""


class Coded(Reducer):
    """The sum of what workers' codes stand for; parts that are not `Part.coded` are summed as they are.

    Cost per worker: for a linear codec as an all-reduce of its code; for others the code is sent to each other worker,
    and P codes are decoded.
    """

    def __init__(self, layout: Layout, wire: Wire, codec: Codec, seed: int) -> None:
        super().__init__(layout, wire)
        self.codec, self._seed = codec, seed
        self._shapes = _shapes_of(layout)
        self._state = CodedState(memory={name: Flat.zeros(layout.bare) for name in codec.memories}, sums=0)
        self._next: dict[int, Memory] = {}
        """By part, what is remembered once the newest sum counts."""
        self._is_over = False
        """Whether the newest sum was started, so that the next part is of another one."""

    def follows(self, before: Reducer) -> None:
        """As of `Reducer`: what is remembered of tensors that both have."""
        assert isinstance(before, Coded)
        before.commit()
        self._state.sums = before._state.sums
        there = {segment.name: index for index, segment in enumerate(before.layout.segments)}
        for name, old in before._state.memory.items():
            for index, segment in enumerate(self.layout.segments):
                if segment.name in there and self.layout.parts[segment.part].coded:
                    self._state.memory[name].segment(index).copy_(old.segment(there[segment.name]))

    @property
    def state(self) -> CodedState:
        self.commit()
        return self._state

    def commit(self) -> None:
        """The newest sum counts, if there is one: remember what was left out of it."""
        if self._is_over:
            for part, memory in self._next.items():
                for name, x in memory.items():
                    self._state.memory[name].parts[part].copy_(x)
            self._state.sums += 1
            self._next, self._is_over = {}, False

    def part_ready(self, part: int, x: Tensor) -> None:
        self.commit()
        self._under_way[part] = self._launched(part, x)

    def start(self, x: Flat, kept: Any = None) -> Work[Flat]:
        self.commit()
        found = super().start(x, kept)
        self._is_over = True
        return found

    def abandon(self) -> Work[list[Any]]:
        self.commit()
        self._is_over = True  # what was launched is encoded once more, by `message`
        return super().abandon()

    def _launched(self, part: int, x: Tensor) -> Work[Any]:
        if part not in self._shapes:
            return self.wire.all_reduce(x)
        code = self._encoded(part, x)
        return self.wire.all_reduce(code) if self.codec.is_linear else self.wire.all_gather(code)

    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        return Together([self._launched(part, x)], lambda found: self._decoded(part, x, found[0]), self.wire.clock)

    def _summed(self, x: Flat, found: Sequence[Any]) -> Flat:
        for part in self._shapes:
            self._decoded(part, x.parts[part], found[part])
        return x

    def _draw(self, part: int, rank: int) -> Draw:
        return Draw(seed=self._seed, round=self._state.sums, rank=rank, part=part)

    def _encoded(self, part: int, x: Tensor) -> Tensor:
        with self.spending("encode"):
            memory = {name: vector.parts[part] for name, vector in self._state.memory.items()}
            is_finite = math.isfinite(float(x.abs().max())) if x.numel() else True
            given = x if is_finite else torch.zeros_like(x)
            code, then = self.codec.encode(given, self._shapes[part], memory, self._draw(part, self.wire.rank))
            if is_finite:
                self._next[part] = then
                return code
            self._next.pop(part, None)
            return torch.full_like(code, math.nan) if self.codec.is_linear else code[:0]

    def _decoded(self, part: int, into: Tensor, found: Any) -> Tensor:
        if self.codec.is_linear:
            return self._add_up(part, into, [found], [self.wire.rank])
        return self._add_up(part, into, found, range(len(found)))

    def _add_up(self, part: int, into: Tensor, codes: Sequence[Tensor], ranks: Sequence[int]) -> Tensor:
        """What the codes of `ranks` stand for, added up in this order."""
        with self.spending("decode"):
            into.zero_()
            for rank, code in zip(ranks, codes, strict=True):
                if code.numel():
                    self.codec.add_decoded(into, code, self._shapes[part], self._draw(part, rank))
                else:
                    into.fill_(math.nan)
            return into

    def wire_bytes(self, size: int) -> int | None:
        total = 0
        for number, part in enumerate(self.layout.parts):
            nbytes: int | None = part.numel * part.dtype.itemsize
            if number in self._shapes:
                nbytes = self.codec.wire_bytes(self._shapes[number])
            if nbytes is None:
                return None
            is_gathered = number in self._shapes and not self.codec.is_linear
            total += (size - 1) * nbytes if is_gathered else all_reduce_bytes(nbytes, size)
        return total

    # -- for sums that are formed anew

    def message(self, x: Flat) -> tuple[Tensor, ...]:
        return tuple(
            self._encoded(part, x.parts[part]) if part in self._shapes else x.parts[part]
            for part in range(len(x.parts))
        )

    def sum_of(
        self, found: Sequence[tuple[Tensor, ...]], ranks: Sequence[int], hosts: Sequence[int], like: Flat
    ) -> Flat:
        sums = Flat.zeros(like.layout)
        for part, into in enumerate(sums.parts):
            column = [one[part].to(into.device) for one in found]
            if part not in self._shapes:
                into.copy_(sum_in_order(column, list(hosts)))
            elif self.codec.is_linear:
                self._add_up(part, into, [sum_in_order(column, list(hosts))], [self.wire.rank])
            else:
                self._add_up(part, into, column, ranks)
        return sums


def _shapes_of(layout: Layout) -> dict[int, Shapes]:
    """Of the parts that are coded: the shapes of their tensors, in the order in which they lie."""
    found = {}
    for number, part in enumerate(layout.parts):
        if part.coded:
            inside = sorted((layout.segments[index] for index in layout.by_part[number]), key=lambda one: one.offset)
            found[number] = tuple(segment.shape for segment in inside)
    return found
