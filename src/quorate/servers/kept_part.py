"""A part of the parameters, or of a centre, as a server keeps it: what is pushed changes it, and readers get it."""

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
from quorate.servers.late_gradients import Corrections
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
