"""A part of the parameters, or of a centre, as a server keeps it: what is pushed changes it, and readers get it.

What a server makes of a gradient that is late: of parameters that others have moved since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quorate.core.codec import elected_
from quorate.core.servers import ServerTerms
from quorate.means.edge_coding import EdgeCoding
from quorate.servers.centre import Centre
from quorate.servers.decisions import Decision, Taken
from quorate.servers.served_codes import PullCodes
from quorate.servers.shard import Shard


@dataclass(frozen=True)
class PartPushed:
    """What a worker has pushed of one part."""

    gradient: Sequence[Tensor]
    """Or its parameters, to which a centre is drawn."""
    edit: Sequence[Tensor]
    unused: frozenset[int]
    """Parameters, by their places among the cut's, for which there is no gradient."""


class KeptPart:
    """`kept` is where it is as all set out; every holder of the part makes the same of the same decisions."""

    def __init__(self, kept: Shard | Centre, terms: ServerTerms, coding: EdgeCoding | None) -> None:
        self._kept, self._terms = kept, terms
        self._votes = tuple(kept.cut.layout.coded) if isinstance(kept, Shard) and coding and coding.votes else ()
        """The parts of the cut of which workers send votes."""
        self._corrections = Corrections(terms, kept) if isinstance(kept, Shard) else None
        self._pulls: PullCodes | None = None
        if isinstance(kept, Shard) and coding is not None and terms.pulls == "coded":
            self._pulls = PullCodes(coding, kept.cut, kept.copied())

    @property
    def count(self) -> int:
        """Tensors in what readers are sent."""
        return len(self._kept.cut.pieces)

    def write(self, edits: Sequence[PartPushed]) -> None:
        """Let parameters be what workers have written into theirs."""
        for pushed in edits:
            if pushed.edit and isinstance(self._kept, Shard):
                self._kept.write(pushed.edit)

    def draw(self, pushed: PartPushed) -> None:
        """Let the centre go to a worker's parameters, as far as it does."""
        assert isinstance(self._kept, Centre)
        self._kept.draw(pushed.gradient, self._terms.elastic or 0.0)

    def step(self, taken: Sequence[tuple[Taken, PartPushed]], options: Sequence[dict[str, Any]], rate: float) -> None:
        """A step of these gradients, at the learning rate of `options` times `rate`."""
        shard, corrections = self._kept, self._corrections
        assert isinstance(shard, Shard) and corrections is not None
        total = [torch.zeros_like(x) for x in shard.placed(taken[0][1].gradient)]
        for x, pushed in taken:
            gradient = corrections.corrected(x.source, shard.placed(pushed.gradient))
            for there, numbers in zip(total, gradient, strict=True):
                there.add_(numbers, alpha=x.factor)
        for number in self._votes:
            elected_(total[number]).mul_(sum(x.factor for x, _ in taken))
        unused = frozenset.intersection(*(pushed.unused for _, pushed in taken))
        used = [place not in unused for place in range(len(shard.cut.places))]
        shard.step(total, options, rate, used)
        corrections.stepped()

    def read(
        self, one: Decision, empty: Callable[[int, torch.dtype], Tensor], *, is_sent: bool
    ) -> dict[int, list[Tensor]]:
        """What each reader is sent, by whoever sends it; `empty(numel, dtype)` makes memory on the CPU."""
        if not is_sent and self._pulls is None and not (self._corrections and self._corrections.is_on):
            return {}
        numbers: list[Tensor] = self._kept.copied(empty)
        found = {}
        for reader, _ in one.readers:
            sent, has = numbers, numbers
            if self._pulls is not None and one.is_whole:
                self._pulls.begin_at(reader, numbers)
            elif self._pulls is not None:
                sent, has = self._pulls.code(reader, numbers, one.version)
            found[reader] = sent
            if self._corrections is not None:
                self._corrections.read(reader, has)
        return found

    @property
    def own_options(self) -> list[dict[str, Any]]:
        """What the optimizer's own steps have written into its groups, as `Shard.own_options`."""
        return self._kept.own_options if isinstance(self._kept, Shard) else []

    @property
    def beside(self) -> dict[str, Any]:
        """What the optimizer keeps beside parameters and options, as `Shard.beside`."""
        return self._kept.beside if isinstance(self._kept, Shard) else {}

    @property
    def states(self) -> tuple[list[Any], list[Tensor]]:
        """What the optimizer keeps, as `Shard.states`."""
        return self._kept.states if isinstance(self._kept, Shard) else ([], [])


_TINY = 1e-7
_FADES = 0.9
"""Of the running mean of steps."""


class Corrections:
    """Those of one shard: delay compensation (Zheng et al. 2017) and gap-aware scaling (Barkai et al. 2020).

    Cost: where either is on, a copy of the shard for every worker (what it has read), and three passes per gradient.
    """

    def __init__(self, terms: ServerTerms, shard: Shard) -> None:
        self._terms, self._shard = terms, shard
        self._compensates, self._by_gap = terms.delay_compensation != "none", terms.staleness_scaling == "gap"
        self._begin = shard.copied() if self.is_on else []
        self._read = dict[int, Sequence[Tensor]]()
        """What each worker has read last."""
        self._squares = [torch.zeros_like(x) for x in self._begin]
        self._steps = [torch.zeros_like(x) for x in self._begin]
        """The running mean of how far a step moves each number."""
        self._made, self._before = 0, self._begin

    @property
    def is_on(self) -> bool:
        """Whether it goes by what workers have read."""
        return self._compensates or self._by_gap

    def corrected(self, source: int, gradient: Sequence[Tensor]) -> Sequence[Tensor]:
        """The gradient of worker `source`, of what it has read last, for where the parameters are now."""
        if not self.is_on:
            return gradient
        now = self._shard.copied()
        found = gradient
        ways = [x - was for x, was in zip(now, self._read.get(source, self._begin), strict=True)]
        if self._compensates:
            found = [
                g + self._strength(place, g) * g * g * way
                for place, (g, way) in enumerate(zip(found, ways, strict=True))
            ]
        if self._by_gap and self._made:
            mean = [step / (1 - _FADES**self._made) for step in self._steps]
            found = [g / (1 + way.abs() / (step + _TINY)) for g, way, step in zip(found, ways, mean, strict=True)]
        return found

    def _strength(self, place: int, gradient: Tensor) -> float | Tensor:
        terms = self._terms
        if terms.delay_compensation == "constant":
            return terms.compensation
        decay, square = terms.compensation_decay, self._squares[place]
        square.mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
        return terms.compensation / (square + _TINY).sqrt()

    def stepped(self) -> None:
        """The shard has made a step."""
        if self._by_gap:
            now = self._shard.copied()
            for mean, x, was in zip(self._steps, now, self._before, strict=True):
                mean.mul_(_FADES).add_((x - was).abs(), alpha=1 - _FADES)
            self._before, self._made = now, self._made + 1

    def read(self, reader: int, numbers: Sequence[Tensor]) -> None:
        """It has read these, which do not change any more."""
        if self.is_on:
            self._read[reader] = numbers
