"""A part of the parameters, or of a centre, on a server: pushes change it, and readers receive it.

Late gradients, of parameters that others have changed since, are corrected here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quorate.buckets.rows import RowsOfWorker
from quorate.core.codec import elected_
from quorate.core.servers import ServerTerms
from quorate.core.vectors import coded_segments
from quorate.means.edge_coding import EdgeCoding
from quorate.servers.order import Decision, Taken
from quorate.servers.served_codes import PullCodes
from quorate.servers.served_tables import TablesOfPart
from quorate.servers.shard import Centre, Shard


@dataclass(frozen=True)
class PartPushed:
    """One part of a push of a worker."""

    gradient: Sequence[Tensor]
    """The gradient; where a centre lies on the servers, the worker's parameters."""
    edit: Sequence[Tensor]
    """Values that the worker has written into its parameters, NaN elsewhere; empty where there are none."""
    unused: frozenset[int]
    """Parameters without a gradient, by their places in the cut."""
    rows: RowsOfWorker | None = None
    """The rows of the gradients of tables; None where the part has no tables, or the push no gradient."""
    row_edit: RowsOfWorker | None = None
    """The rows of tables with values that the worker has written, NaN elsewhere; None where there are none."""


class KeptPart:
    """A part on one of its holders, which all carry out the same decisions; `kept` is its state as the era begins."""

    def __init__(self, kept: Shard | Centre, terms: ServerTerms, coding: EdgeCoding | None) -> None:
        self._kept, self._terms = kept, terms
        self._votes = (
            tuple(coded_segments(kept.cut.layout)) if isinstance(kept, Shard) and coding and coding.votes else ()
        )
        """Numbers of the pieces of the cut of which workers send votes."""
        self._corrections = Corrections(terms, kept) if isinstance(kept, Shard) else None
        self._tables: TablesOfPart | None = None
        if isinstance(kept, Shard) and kept.tables:
            self._tables = TablesOfPart(kept.tables, writes_rows_only=kept.writes_rows_only)
        self._pulls: PullCodes | None = None
        if isinstance(kept, Shard) and coding is not None and terms.pulls == "coded":
            self._pulls = PullCodes(coding, kept.cut, kept.copied())

    @property
    def count(self) -> int:
        """Number of tensors that a reader is sent."""
        return self._kept.cut.count

    def write(self, edits: Sequence[PartPushed]) -> None:
        """Write the values into the parameters that workers have written into theirs."""
        for pushed in edits:
            if pushed.edit and isinstance(self._kept, Shard):
                self._kept.write(pushed.edit)
            if pushed.row_edit is not None and self._tables is not None:
                self._tables.write(pushed.row_edit)

    def draw(self, pushed: PartPushed) -> None:
        """Move the centre by the fraction `elastic` of its distance towards a worker's parameters."""
        assert isinstance(self._kept, Centre)
        self._kept.draw(pushed.gradient, self._terms.elastic or 0.0)

    def step(self, taken: Sequence[tuple[Taken, PartPushed]], options: Sequence[dict[str, Any]], rate: float) -> None:
        """Make one step on the weighted sum of these gradients, at the learning rate of `options` times `rate`."""
        shard, corrections = self._kept, self._corrections
        assert isinstance(shard, Shard) and corrections is not None
        total = [torch.zeros_like(x) for x in shard.placed(taken[0][1].gradient)]
        for x, pushed in taken:
            gradient = corrections.corrected(x.source, shard.placed(pushed.gradient))
            for target, numbers in zip(total, gradient, strict=True):
                target.add_(numbers, alpha=x.factor)
        for number in self._votes:
            elected_(total[number]).mul_(sum(x.factor for x, _ in taken))
        unused = frozenset.intersection(*(pushed.unused for _, pushed in taken))
        used = [place not in unused for place in range(len(shard.cut.places))]
        of_tables: list[Tensor | None] = []
        if self._tables is not None:
            pushed_rows = [(x.factor, pushed.rows) for x, pushed in taken if pushed.rows is not None]
            of_tables = self._tables.gradients(pushed_rows)
        shard.step(total, options, rate, used, of_tables)
        corrections.stepped()

    def read(
        self, decision: Decision, empty: Callable[[int, torch.dtype], Tensor], *, is_sent: bool
    ) -> dict[int, list[Tensor]]:
        """Return the tensors for each reader of a decision; `empty(numel, dtype)` allocates memory on the CPU."""
        rows = dict[int, Tensor]()
        if self._tables is not None:
            readers = [reader for reader, _ in decision.readers]
            rows = self._tables.read(readers, is_whole=decision.is_whole, is_sent=is_sent)
        if not is_sent and self._pulls is None and not (self._corrections and self._corrections.is_on):
            return {}
        numbers: list[Tensor] = self._kept.copied(empty)
        sent = {}
        for reader, _ in decision.readers:
            tensors, copy = numbers, numbers
            if self._pulls is not None and decision.is_whole:
                self._pulls.begin_at(reader, numbers)
            elif self._pulls is not None:
                tensors, copy = self._pulls.code(reader, numbers, decision.version)
            sent[reader] = [*tensors, rows[reader]] if reader in rows else tensors
            if self._corrections is not None:
                self._corrections.read(reader, copy)
        return sent

    @property
    def own_options(self) -> list[dict[str, Any]]:
        """Options that the optimizer's own steps have changed: see `Shard.own_options`."""
        return self._kept.own_options if isinstance(self._kept, Shard) else []

    @property
    def beside(self) -> dict[str, Any]:
        """State of the optimizer outside parameters and options: see `Shard.beside`."""
        return self._kept.beside if isinstance(self._kept, Shard) else {}

    @property
    def states(self) -> tuple[list[Any], list[Tensor]]:
        """State of the optimizer: see `Shard.states`."""
        return self._kept.states if isinstance(self._kept, Shard) else ([], [])


_TINY = 1e-7
_DECAY = 0.9


class Corrections:
    """Corrections of late gradients: delay compensation (Zheng et al. 2017) and gap-aware scaling (Barkai et al. 2020).

    Cost: where either is on, a copy of the shard for every worker (its last read), and three passes per gradient; two
    more vectors of the greatest tensor meanwhile.
    """

    def __init__(self, terms: ServerTerms, shard: Shard) -> None:
        self._terms, self._shard = terms, shard
        self._compensates, self._by_gap = terms.delay_compensation != "none", terms.staleness_scaling == "gap"
        self._begin = shard.copied() if self.is_on else []
        """The parameters at the start of the era, for workers that have not read since."""
        self._read = dict[int, Sequence[Tensor]]()
        """By worker: the parameters that it has read last."""
        is_scaled_by_square = self._compensates and terms.delay_compensation != "constant"
        self._squares = [torch.zeros_like(x) for x in self._begin if is_scaled_by_square]
        self._before = [x.clone() for x in self._begin if self._by_gap]
        self._steps = [torch.zeros_like(x) for x in self._before]
        """The running mean of the absolute change of each number in a step."""
        self._steps_made = 0

    @property
    def is_on(self) -> bool:
        """Whether either correction is on."""
        return self._compensates or self._by_gap

    def corrected(self, source: int, gradient: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the gradient of worker `source`, corrected for the changes of the parameters since its last read."""
        if not self.is_on:
            yield from gradient
            return
        for place, (g, was) in enumerate(zip(gradient, self._read.get(source, self._begin), strict=True)):
            delta = self._shard.copied_piece(place).sub_(was)
            corrected = g
            if self._compensates:
                corrected = (self._strength(place, g) * g).mul_(g).mul_(delta).add_(g)
            if self._by_gap and self._steps_made:
                mean = self._steps[place] / (1 - _DECAY**self._steps_made)
                corrected = corrected / delta.abs_().div_(mean.add_(_TINY)).add_(1)
            yield corrected

    def _strength(self, place: int, gradient: Tensor) -> float | Tensor:
        terms = self._terms
        if terms.delay_compensation == "constant":
            return terms.compensation
        decay, square = terms.compensation_decay, self._squares[place]
        square.mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
        return terms.compensation / (square + _TINY).sqrt_()

    def stepped(self) -> None:
        """Update the running mean after a step of the shard."""
        if self._by_gap:
            for place, (mean, was) in enumerate(zip(self._steps, self._before, strict=True)):
                self._before[place] = self._shard.copied_piece(place)
                mean.mul_(_DECAY).add_(was.sub_(self._before[place]).abs_(), alpha=1 - _DECAY)
            self._steps_made += 1

    def read(self, reader: int, numbers: Sequence[Tensor]) -> None:
        """Note that `reader` has read these numbers, which do not change any more."""
        if self.is_on:
            self._read[reader] = numbers
