"""PowerSGD: each gradient matrix as a product of two thin ones, computed by one step of power iteration.

Idea: The matrix M (n x m), the gradient plus what was left out before, is approximated by P Q^T of rank r. Q comes from
the previous step (warm start). All workers average P = M Q, orthonormalize its columns, and average Q = M^T P: then P
Q^T is the best approximation of the mean with these columns. Every worker remembers what its own product leaves out of
its own M (error feedback). The products add up exactly, so the sum sent plus what is remembered equals the sum of the
inputs, even if some workers contribute nothing. Tensors of more dimensions are matrices of their first dimension by all
others. If two thin matrices are not `min_rate` times smaller, a tensor is sent unchanged.

Cost: (n + m) r numbers for a matrix of n m, in two all-reduces: the first overlaps with the backward pass, the second
comes after it. Three products of a matrix with a thin one, and a QR decomposition of a thin one; a vector for the
error, one for M during a sum. A sum that is formed again after a death, and all later sums, are dense, because two
exchanges among survivors would be needed.

When it loses: On fast networks, where two rounds of latency cost more than bytes. With a rank too small for the
gradients, most of all early in training: the first `start` sums are dense.

Paper: Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed optimization",
NeurIPS 2019, Algorithms 1 and 2.
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
from quorate.core.vectors import Flat, Layout, Segment, bare_layout, coded_segments
from quorate.means.reducer import Reducer
from quorate.means.remembering import Remembering, is_finite
from quorate.wire.cost import all_reduce_bytes


@dataclass(frozen=True, kw_only=True)
class PowerSGDSettings:
    """Each gradient matrix as a product of two thin matrices."""

    rank: int = 4
    """r: columns of the thin matrices."""
    start: int = 10
    """Sums that are dense before the first that is not."""
    min_rate: float = 2.0
    """A tensor is compressed where that makes it so many times smaller."""
    warm_start: bool = True
    """Whether power iteration goes on from the step before; else it begins from drawn numbers in each."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigurationError(f"rank is {self.rank}; it must be a number of columns (at least 1)")
        if self.start < 0:
            raise ConfigurationError(f"start is {self.start}; it must be a number of steps (at least 0)")
        if not self.min_rate >= 1:
            raise ConfigurationError(f"min_rate is {self.min_rate}; it must be a factor (at least 1)")


@dataclass(kw_only=True)
class PowerSGDState:
    """What one worker remembers."""

    error: Flat = kept("sum")
    """What was left out of its own gradients."""
    q: dict[str, Tensor] = kept("same")
    """By the tensor's name, the right thin matrix (m, r) of the newest sum; zeros before there was one."""
    sums: int = kept("same", default=0)
    """How many there have been."""


@dataclass
class _Matrix:
    """One tensor of a part that is compressed."""

    segment: Segment
    n: int
    m: int
    rank: int

    def of(self, x: Tensor) -> Tensor:
        """Its numbers in a part, as a matrix (n, m)."""
        return x[self.segment.offset : self.segment.offset + self.n * self.m].view(self.n, self.m)


@dataclass
class _Part:
    """What of a coded part is matrices, and where the rest lies."""

    matrices: list[_Matrix] = field(default_factory=list)
    others: list[tuple[int, int]] = field(default_factory=list)

    def rest_of(self, x: Tensor) -> list[Tensor]:
        """Views of what is no matrix."""
        return [x[begin:end] for begin, end in self.others]


@dataclass
class _Given:
    """One part of a sum under way: M, laid out as the part, and Q by tensor. None: it is dense."""

    m: Tensor | None
    q: list[Tensor] = field(default_factory=list)


class PowerSGD(Remembering):
    """Each gradient matrix as a product of two thin ones; parts that are not `Part.coded` are summed as they are."""

    def __init__(self, layout: Layout, wire: Wire, settings: PowerSGDSettings, seed: int) -> None:
        super().__init__(layout, wire, coded_segments(layout))
        self.settings, self._seed = settings, seed
        self._parts = {number: self._cut(inside) for number, inside in coded_segments(layout).items()}
        matrices = [(one, layout.parts[part]) for part, cut in self._parts.items() for one in cut.matrices]
        q = {x.segment.name: torch.zeros(x.m, x.rank, dtype=of.dtype, device=of.device) for x, of in matrices}
        self._state = PowerSGDState(error=Flat.zeros(bare_layout(layout)), q=q)
        self._given: dict[int, _Given] = {}
        self._next: dict[int, tuple[Tensor, dict[str, Tensor]]] = {}
        """By part, what is remembered once the newest sum counts: the error, and each Q."""

    def _cut(self, inside: Sequence[Segment]) -> _Part:
        found = _Part()
        for segment in inside:
            n = segment.shape[0] if segment.shape else 1
            m = segment.numel // n if n else 0
            rank = min(n, m, self.settings.rank)
            if rank and (n + m) * rank * self.settings.min_rate <= n * m:
                found.matrices.append(_Matrix(segment, n, m, rank))
            else:
                found.others.append((segment.offset, segment.offset + segment.numel))
        return found

    @property
    def state(self) -> PowerSGDState:
        self.commit()
        return self._state

    def commit(self) -> None:
        """The newest sum counts, if there is one."""
        if self._is_over:
            for part, (error, q) in self._next.items():
                self._state.error.parts[part].copy_(error)
                self._state.q.update(q)
            self._state.sums += 1
            self._next, self._given, self._is_over = {}, {}, False

    def follows(self, before: Reducer) -> None:
        assert isinstance(before, PowerSGD)
        old = before.state
        self._state.sums = old.sums
        there = {segment.name: index for index, segment in enumerate(before.layout.segments)}
        for index, segment in enumerate(self.layout.segments):
            if segment.name in there and self.layout.parts[segment.part].coded:
                self._state.error.segment(index).copy_(old.error.segment(there[segment.name]))
        self._state.q = {name: old.q.get(name, q) for name, q in self._state.q.items()}

    # -- a sum

    def _launched(self, part: int, x: Tensor) -> Work[Any]:
        cut = self._parts[part]
        if self._state.sums < self.settings.start or not cut.matrices:
            self._given[part] = _Given(None)
            return self.wire.all_reduce(x)
        with self.spending("encode"):
            m = x + self._state.error.parts[part]
            given = self._given[part] = _Given(m, [self._q_of(one, m) for one in cut.matrices])
            thin = [one.of(m) @ q for one, q in zip(cut.matrices, given.q, strict=True)]
            sent = torch.cat([y.reshape(-1) for y in (*thin, *cut.rest_of(x))])
        return self.wire.all_reduce(sent)

    def _q_of(self, one: _Matrix, like: Tensor) -> Tensor:
        known = self._state.q.get(one.segment.name) if self.settings.warm_start else None
        if known is not None and known.shape == (one.m, one.rank) and bool(known.any()):
            return known.to(like)
        draw = Draw(seed=self._seed, round=self._state.sums, part=one.segment.part)
        numbers = torch.randn(one.m, one.rank, generator=draw.generator(torch.device("cpu"), shared=True))
        return numbers.to(like)

    def _finish(self, into: Mapping[int, Tensor], found: Mapping[int, Tensor]) -> None:
        """Behind the sums of P: those of Q, and the product of both."""
        thin: dict[int, list[Tensor]] = {}
        second: dict[int, Work[Tensor]] = {}
        for part, x in into.items():
            m, cut = self._given[part].m, self._parts[part]
            if m is None:
                continue
            with self.spending("encode"):
                *sums, rest = found[part].split([one.n * one.rank for one in cut.matrices] + [_rest(cut)])
                for place, numbers in zip(cut.rest_of(x), rest.split([e - b for b, e in cut.others]), strict=True):
                    place.copy_(numbers)
                ps = thin[part] = [
                    _orthonormal(p.view(-1, one.rank)) for p, one in zip(sums, cut.matrices, strict=True)
                ]
                sent = torch.cat([(one.of(m).T @ p).reshape(-1) for p, one in zip(ps, cut.matrices, strict=True)])
                self._remember(part, m, ps, sent)
            second[part] = self.wire.all_reduce(sent)
        for part, work in second.items():
            sums_of_q = work.wait()
            with self.spending("decode"):
                self._multiply(part, into[part], thin[part], sums_of_q)

    def _qs(self, part: int, numbers: Tensor) -> list[Tensor]:
        matrices = self._parts[part].matrices
        pieces = numbers.split([one.m * one.rank for one in matrices])
        return [piece.view(one.m, one.rank) for piece, one in zip(pieces, matrices, strict=True)]

    def _remember(self, part: int, m: Tensor, ps: Sequence[Tensor], own: Tensor) -> None:
        """What this worker's own product leaves out of M, which becomes the error; a bad part leaves nothing."""
        if not is_finite(own):
            self._next.pop(part, None)
            return
        cut = self._parts[part]
        for one, p, q in zip(cut.matrices, ps, self._qs(part, own), strict=True):
            one.of(m).sub_(p @ q.T)
        for place in cut.rest_of(m):
            place.zero_()
        self._next[part] = (m, {})

    def _multiply(self, part: int, into: Tensor, ps: Sequence[Tensor], numbers: Tensor) -> None:
        qs = {}
        for one, p, q in zip(self._parts[part].matrices, ps, self._qs(part, numbers), strict=True):
            one.of(into).copy_(p @ q.T)
            qs[one.segment.name] = q.clone()
        if part in self._next and is_finite(numbers):
            self._next[part] = (self._next[part][0], qs)

    def wire_bytes(self, size: int) -> int:
        """As of `Reducer`, behind the first `start` sums."""
        total = 0
        for number, part in enumerate(self.layout.parts):
            numbers = part.numel
            if number in self._parts and self._parts[number].matrices:
                cut = self._parts[number]
                numbers = sum(one.n * one.rank for one in cut.matrices) + _rest(cut)
                second = sum(one.m * one.rank for one in cut.matrices)
                total += all_reduce_bytes(second * part.dtype.itemsize, size)
            total += all_reduce_bytes(numbers * part.dtype.itemsize, size)
        return total

    # -- for sums that are formed anew

    def message(self, x: Flat) -> tuple[Tensor, ...]:
        """Dense: `_next` is left empty, so that the error stays what it was."""
        self._next = {}
        return x.parts


def _rest(cut: _Part) -> int:
    return sum(end - begin for begin, end in cut.others)


def _orthonormal(p: Tensor) -> Tensor:
    """A basis of the columns of `p` (n, r), each of length 1; where there are fewer than r, any that complete it."""
    if not is_finite(p):
        return torch.full_like(p, math.nan)
    scale = p.abs().max()
    basis: Tensor = torch.linalg.qr(p / scale if float(scale) > 0 else p)[0]
    return basis
