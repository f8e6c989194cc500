"""`Attacked`: some workers send something else than their gradients, for tests and for teaching."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from quorate.aggregation.attacks import Attack
from quorate.core.codec import Draw
from quorate.core.contracts import Work
from quorate.reducers.reducer import Reducer

if TYPE_CHECKING:
    from torch import Tensor

    from quorate.core.vectors import Flat
    from quorate.reducers.outcome import Outcome


class Attacked(Reducer):
    """`inner`, of which the last workers give what an attack makes of their vectors; headers stay as they are.

    Nothing overlaps with backward. Cost: where attackers know all, every vector is sent to everyone first; those that
    remember keep as many vectors as their attack has steps.
    """

    def __init__(self, inner: Reducer, attack: Attack, seed: int) -> None:
        super().__init__(inner.layout, inner.wire)
        self._inner, self._attack, self._seed = inner, attack, seed
        self._count = 0
        self._past: deque[list[Tensor]] = deque(maxlen=attack.steps)

    @property
    def spending(self) -> Callable[[Literal["encode", "decode"]], AbstractContextManager[Any]]:
        """As of `Reducer`."""
        return self._inner.spending

    @spending.setter
    def spending(self, value: Callable[[Literal["encode", "decode"]], AbstractContextManager[Any]]) -> None:
        if hasattr(self, "_inner"):
            self._inner.spending = value

    @property
    def state(self) -> Any:
        return self._inner.state

    @property
    def outcome(self) -> Outcome | None:
        return self._inner.outcome

    def part_ready(self, part: int, x: Tensor) -> None:
        """Parts are held back until all are there."""

    def start(self, x: Flat, kept: Callable[[], Flat] | None = None) -> Work[Flat]:
        self._spoil(x)
        return self._inner.start(x, kept)

    def abandon(self, x: Flat) -> Work[list[Any]]:
        self._spoil(x)
        return self._inner.abandon(x)

    def _spoil(self, x: Flat) -> None:
        """Write into `x` what this worker sends."""
        import torch

        own = [part[: part.numel() - (x.layout.header if part is x.parts[-1] else 0)] for part in x.parts]
        wire, attack = self.wire, self._attack
        attackers, self._count = attack.attackers(wire.size), self._count + 1
        honest: list[Tensor | None] = [None] * len(own)
        if attack.knows_all:
            every = [wire.all_gather(part.clone()) for part in own]
            good = [rank for rank in range(wire.size) if rank not in attackers]
            honest = [
                torch.stack([found[rank] for rank in good]) if good else None for found in (w.wait() for w in every)
            ]
        if wire.rank not in attackers or (attack.knows_all and honest[0] is None):
            return
        sent = own
        if attack.remembers:
            if attack.name == "delayed" or len(self._past) < attack.steps:
                self._past.append([part.clone() for part in own])
            place = 0 if attack.name == "delayed" else (self._count - 1) % len(self._past)
            sent = self._past[place]
        for number, part in enumerate(own):
            draw = Draw(seed=self._seed, round=self._count, rank=wire.rank, part=number)
            part.copy_(attack.sent(sent[number], honest[number], draw))

    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        return self._inner.again(part, x)

    def factor(self, size: int, weight: float) -> float:
        return self._inner.factor(size, weight)

    def wire_bytes(self, size: int) -> int | None:
        inner = self._inner.wire_bytes(size)
        if inner is None or not self._attack.knows_all:
            return inner
        return inner + (size - 1) * sum(part.numel * part.dtype.itemsize for part in self.layout.bare.parts)

    def message(self, x: Flat) -> tuple[Tensor, ...]:
        return self._inner.message(x)

    def sum_of(
        self, found: Sequence[tuple[Tensor, ...]], ranks: Sequence[int], hosts: Sequence[int], like: Flat
    ) -> Flat:
        return self._inner.sum_of(found, ranks, hosts, like)

    def follows(self, before: Reducer) -> None:
        if isinstance(before, Attacked):
            self._inner.follows(before._inner)
