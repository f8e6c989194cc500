"""`Attacked`: some workers send something other than their gradients, for tests and for teaching."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quorate.aggregation.attacks import Attack
from quorate.core.codec import Draw
from quorate.core.contracts import Work
from quorate.core.vectors import bare_layout, header_in
from quorate.means.reducer import Reducer
from quorate.means.wrapped import Wrapped

if TYPE_CHECKING:
    from torch import Tensor

    from quorate.core.vectors import Flat


class Attacked(Wrapped):
    """`inner`, where an attack replaces the vectors of the last workers; headers are not changed.

    Nothing overlaps with the backward pass. Cost: one that knows all vectors has every worker send its own to all
    before; one that remembers keeps a vector for each of its steps.
    """

    def __init__(self, inner: Reducer, attack: Attack, seed: int) -> None:
        super().__init__(inner)
        self._attack, self._seed = attack, seed
        self._count = 0
        self._past: deque[list[Tensor]] = deque(maxlen=attack.steps)

    def part_ready(self, part: int, x: Tensor) -> None:
        """Do nothing: an attack needs all parts, and `start` launches them."""

    def start(self, x: Flat, kept: Callable[[], Flat] | None = None) -> Work[Flat]:
        self._spoil(x)
        return super().start(x, kept)

    def abandon(self, x: Flat) -> Work[list[Any]]:
        self._spoil(x)
        return super().abandon(x)

    def _spoil(self, x: Flat) -> None:
        """Replace the numbers of `x` by those that this worker sends."""
        import torch

        parts = [part[: part.numel() - (x.layout.header if part is x.parts[-1] else 0)] for part in x.parts]
        wire, attack = self.wire, self._attack
        attackers, self._count = attack.attackers(wire.size), self._count + 1
        honest: list[Tensor | None] = [None] * len(parts)
        if attack.knows_all:
            gathered = [wire.all_gather(part.clone()) for part in parts]
            honest_ranks = [rank for rank in range(wire.size) if rank not in attackers]
            for number, work in enumerate(gathered):
                vectors = work.wait()
                honest[number] = torch.stack([vectors[rank] for rank in honest_ranks]) if honest_ranks else None
        if wire.rank not in attackers or (attack.knows_all and honest[0] is None):
            return
        sent, weight = parts, float(header_in(x)[0]) if x.layout.header else 1.0
        unit = weight / self.divisor(wire.size)
        if attack.remembers:
            if attack.name == "delayed" or len(self._past) < attack.steps:
                self._past.append([part.clone() for part in parts])
            place = 0 if attack.name == "delayed" else (self._count - 1) % len(self._past)
            sent = self._past[place]
        for number, part in enumerate(parts):
            draw = Draw(seed=self._seed, round=self._count, rank=wire.rank, part=number)
            part.copy_(attack.sent(sent[number], honest[number], draw, unit=unit))

    def wire_bytes(self, size: int) -> int | None:
        inner = super().wire_bytes(size)
        if inner is None or not self._attack.knows_all:
            return inner
        return inner + (size - 1) * sum(part.numel * part.dtype.itemsize for part in bare_layout(self.layout).parts)
