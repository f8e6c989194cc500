"""ARC-Top-K: the largest rows of the sum of all gradients, which a sketch shows, so that an all-reduce sums them.

Idea: Each worker i averages its gradients over steps, h_i = beta h_i + (1 - beta) g_i, and knows e_i, the part of h_i
that it has sent so far. What is left, D_i = h_i - e_i, is a matrix (m x n) for each tensor. All workers draw the same
normal matrix V (n x r) in each step, and average the sketch D_i V / sqrt(r). Its rows have about the lengths of the
rows of the mean of all D_i. So all workers choose the same K = ceil(density m) longest rows, and average these rows
alone. They are added to e_i on each worker, and to the common estimate, which is the result: nothing else is decoded.
A tensor of more dimensions is a matrix of its first dimension by all others. Tensors that this would not make smaller
are sent unchanged.

Cost: m r + K n numbers for a matrix of m n, in two all-reduces: the first overlaps with the backward pass, the second
comes after it. A product of a matrix with a thin one. Three vectors of memory: h_i, e_i and the estimate. A sum that is
formed again after a death, and all later sums, are dense: what the dead worker had sent is in the estimate for ever.

When it loses: To `top-k` at low density, as full rows are sent, and no fewer bytes than r / n of the tensor. To dense
sums, where the network is fast. With an optimizer that has momentum: the result is an average over steps already, and
rows that are not sent keep their old values. When workers end at different steps: the averages of those that have
ended fade over some 1 / (1 - beta) steps, which are too long.

Paper: "ARC-Top-K", 2025 (arXiv 2510.26709), Algorithm 1, with the tracking of Richtarik, Sokolov and Fatkhullin,
"EF21: a new, simpler, theoretically better, and practically faster error feedback", NeurIPS 2021, and its momentum. The
authors begin with 1000 dense steps, and with beta = 0.9, r = 4 and a density of 0.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quorate.core.codec import Draw
from quorate.core.contracts import Wire, Work
from quorate.core.errors import ConfigurationError
from quorate.core.resize import kept
from quorate.core.vectors import Flat, Layout, Segment, bare_layout, carry_coded, coded_segments
from quorate.means.reducer import Reducer, ReducerSettings
from quorate.means.remembering import Remembering, is_finite
from quorate.wire.cut import all_reduce_bytes
from quorate.wire.work import Stages


@dataclass(frozen=True, kw_only=True)
class ArcTopKSettings(ReducerSettings):
    """The largest rows of the sum of all gradients, chosen by a sketch that is summed before them."""

    density: float = 0.2
    """Share of the rows of each matrix that are sent, above 0 and at most 1."""
    rank: int = 4
    """r: number of columns of the sketch."""
    momentum: float = 0.9
    """beta: factor of the earlier gradients in the average of each worker's gradients; 0: the newest one counts."""
    start: int = 10
    """Number of dense sums at the start, at least 1; the authors use 1000."""

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ConfigurationError(
                f"density is {self.density}; it must be a share of all rows, above 0 and at most 1"
            )
        if self.rank < 1:
            raise ConfigurationError(f"rank is {self.rank}; it must be a number of columns (at least 1)")
        if not 0 <= self.momentum < 1:
            raise ConfigurationError(f"momentum is {self.momentum}; it must be a factor of at least 0 and below 1")
        if self.start < 1:
            raise ConfigurationError(f"start is {self.start}; it must be a number of steps (at least 1)")

    def reducer(self, layout: Layout, wire: Wire, seed: int) -> Reducer:
        return ArcTopK(layout, wire, self, seed)


@dataclass(kw_only=True)
class ArcTopKState:
    """The memory of one worker. The sum of `sent` over all workers is `estimate`."""

    average: Flat = kept("sum")
    """h: the average over steps of this worker's gradients."""
    sent: Flat = kept("sum")
    """e: the part of `average` that this worker has sent."""
    estimate: Flat = kept("same")
    """The sum of what all workers have sent, which is the result of sums."""
    sums: int = kept("same", default=0)
    """The number of sums since the start, or since a death."""


@dataclass
class _Matrix:
    """One compressed tensor of a part, of `rows` by `columns`, of which `keep` rows are sent."""

    segment: Segment
    rows: int
    columns: int
    keep: int
    rank: int

    def of(self, x: Tensor) -> Tensor:
        """Return the numbers of the tensor in a part, as a matrix."""
        return x[self.segment.offset : self.segment.offset + self.rows * self.columns].view(self.rows, self.columns)


@dataclass
class _Part:
    """The matrices of a coded part, and where its other tensors are."""

    matrices: list[_Matrix] = field(default_factory=list)
    others: list[tuple[int, int]] = field(default_factory=list)

    def without_others(self, x: Tensor) -> Tensor:
        """Set the other tensors in a part to zero; return the part."""
        for begin, end in self.others:
            x[begin:end].zero_()
        return x

    @property
    def first(self) -> list[int]:
        """The numbers of each piece of the first exchange: sketches, and the other tensors."""
        return [*(matrix.rows * matrix.rank for matrix in self.matrices), *(end - begin for begin, end in self.others)]

    @property
    def second(self) -> list[int]:
        """The numbers of each piece of the second exchange: the rows of each matrix."""
        return [matrix.keep * matrix.columns for matrix in self.matrices]


@dataclass
class _Memory:
    """The memory of one part, as it is once the newest sum counts."""

    average: Tensor
    sent: Tensor
    estimate: Tensor


class ArcTopK(Remembering):
    """The largest rows of the sum of all gradients; parts that are not coded are summed unchanged."""

    def __init__(self, layout: Layout, wire: Wire, settings: ArcTopKSettings, seed: int) -> None:
        super().__init__(layout, wire, coded_segments(layout))
        self.settings, self._seed = settings, seed
        self._parts = {number: self._cut(inside) for number, inside in coded_segments(layout).items()}
        average, sent, estimate = (Flat.zeros(bare_layout(layout)) for _ in range(3))
        self._state = ArcTopKState(average=average, sent=sent, estimate=estimate)
        self._under_sum: dict[int, Tensor] = {}
        """For each part of the sum under way, the average of this worker's gradients."""
        self._next: dict[int, _Memory] = {}

    def _cut(self, segments: Sequence[Segment]) -> _Part:
        part = _Part()
        for segment in segments:
            rows = segment.shape[0] if segment.shape else 1
            columns = segment.numel // rows if rows else 0
            keep, rank = math.ceil(self.settings.density * rows), min(self.settings.rank, columns)
            if rows * rank + keep * columns < segment.numel:
                part.matrices.append(_Matrix(segment, rows, columns, keep, rank))
            else:
                part.others.append((segment.offset, segment.offset + segment.numel))
        return part

    @property
    def state(self) -> ArcTopKState:
        self.commit()
        return self._state

    @property
    def _is_dense(self) -> bool:
        return self._state.sums < self.settings.start

    def commit(self) -> None:
        if self._is_over:
            for part, memory in self._next.items():
                self._state.average.parts[part].copy_(memory.average)
                self._state.sent.parts[part].copy_(memory.sent)
                self._state.estimate.parts[part].copy_(memory.estimate)
            coded = sum(bool(cut.matrices) for cut in self._parts.values())
            if self._state.sums or len(self._next) == coded:  # averages of all tensors begin with one gradient
                self._state.sums += 1
            self._next, self._under_sum, self._is_over = {}, {}, False

    def retract(self) -> None:
        self._next, self._under_sum, self._is_over = {}, {}, False

    def follows(self, before: Reducer) -> None:
        assert isinstance(before, ArcTopK)
        old = before.state
        self._state.sums = old.sums
        for name in ("average", "sent", "estimate"):
            carry_coded(getattr(old, name), getattr(self._state, name))

    # -- a sum

    def _launched(self, part: int, x: Tensor) -> Work[Any]:
        cut, state = self._parts[part], self._state
        self._next.pop(part, None)
        if not cut.matrices:
            return self.wire.all_reduce(x)
        with self.spending("encode"):
            beta = self.settings.momentum if state.sums else 0.0
            average = cut.without_others(torch.lerp(x, state.average.parts[part], beta))
            self._under_sum[part] = average
            if self._is_dense:
                return self.wire.all_reduce(x)
            left = average - state.sent.parts[part]
            sketches = [
                (matrix.of(left) @ v).reshape(-1) for matrix, v in zip(cut.matrices, self._drawn(part, x), strict=True)
            ]
            sent = torch.cat([*sketches, *(x[begin:end] for begin, end in cut.others)])
        return self.wire.all_reduce(sent)

    def _drawn(self, part: int, like: Tensor) -> list[Tensor]:
        """Return V / sqrt(r) of each matrix of a part: equal on all workers, another one in each sum."""
        draw = Draw(seed=self._seed, round=self._state.sums, part=part)
        generator = draw.generator(torch.device("cpu"), shared=True)
        return [
            torch.randn(matrix.columns, matrix.rank, generator=generator).to(like) / math.sqrt(matrix.rank)
            for matrix in self._parts[part].matrices
        ]

    def _finish(self, into: Mapping[int, Tensor], results: Mapping[int, Tensor]) -> Stages[None]:
        """Choose the rows, sum them, and write the estimate."""
        second: dict[int, tuple[Work[Tensor], list[Tensor], Tensor]] = {}
        for part, x in into.items():
            cut = self._parts[part]
            if not cut.matrices:
                continue
            if self._is_dense:
                self._remember_dense(part, results[part])
                continue
            with self.spending("encode"):
                first = results[part].split(cut.first)
                for (begin, end), numbers in zip(cut.others, first[len(cut.matrices) :], strict=True):
                    x[begin:end] = numbers
                sketches = first[: len(cut.matrices)]
                if not all(map(is_finite, sketches)):  # equal on all workers, as sums are
                    for matrix in cut.matrices:
                        matrix.of(x).fill_(math.nan)
                    continue
                rows = [
                    _longest(sketch.view(matrix.rows, -1), matrix.keep)
                    for sketch, matrix in zip(sketches, cut.matrices, strict=True)
                ]
                left = self._under_sum[part] - self._state.sent.parts[part]
                own = torch.cat(
                    [matrix.of(left)[at].reshape(-1) for matrix, at in zip(cut.matrices, rows, strict=True)]
                )
            second[part] = self.wire.all_reduce(own.clone()), rows, own
        for part, (work, rows, own) in second.items():
            summed = yield work
            with self.spending("decode"):
                self._add_rows(part, into[part], rows, own, summed)

    def _add_rows(self, part: int, into: Tensor, rows: Sequence[Tensor], own: Tensor, summed: Tensor) -> None:
        cut, state = self._parts[part], self._state
        memory = _Memory(self._under_sum[part], state.sent.parts[part].clone(), state.estimate.parts[part].clone())
        pieces = zip(cut.matrices, rows, own.split(cut.second), summed.split(cut.second), strict=True)
        for matrix, at, of_worker, of_all in pieces:
            matrix.of(memory.sent).index_add_(0, at, of_worker.view(-1, matrix.columns))
            matrix.of(memory.estimate).index_add_(0, at, of_all.view(-1, matrix.columns))
            matrix.of(into).copy_(matrix.of(memory.estimate))
        if is_finite(summed):
            self._next[part] = memory

    def _remember_dense(self, part: int, summed: Tensor) -> None:
        """Remember a dense sum: all of this worker's average counts as sent."""
        if not is_finite(summed):
            return
        with self.spending("decode"):
            beta = self.settings.momentum if self._state.sums else 0.0
            average = self._under_sum[part]
            estimate = torch.lerp(summed, self._state.estimate.parts[part], beta)
            self._next[part] = _Memory(average, average, self._parts[part].without_others(estimate))

    def wire_bytes(self, size: int) -> int:
        """Return the bytes that one worker sends for one sum after the first `start`."""
        total = 0
        for number, part in enumerate(self.layout.parts):
            cut = self._parts.get(number, _Part())
            numbers = [sum(cut.first), sum(cut.second)] if cut.matrices else [part.numel]
            total += sum(all_reduce_bytes(count * part.dtype.itemsize, size) for count in numbers)
        return total

    # -- for sums that are formed again

    def message(self, x: Flat) -> tuple[Tensor, ...]:
        """Return the dense parts. The memory begins again: no sum of the survivors' is the estimate."""
        self._next, self._state.sums = {}, 0
        return x.parts


def _longest(sketch: Tensor, count: int) -> Tensor:
    """Return the places of the longest rows, rising; among equal ones the first, so that all workers agree."""
    lengths = sketch.square().sum(1)
    return lengths.argsort(descending=True, stable=True)[:count].sort().values
