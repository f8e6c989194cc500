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
from quorate.core.device_copies import to_device
from quorate.core.errors import ConfigurationError
from quorate.core.resize import kept
from quorate.core.vectors import Flat, Layout, Segment, bare_layout, carry_coded, coded_segments
from quorate.means.reducer import Reducer, ReducerSettings
from quorate.means.remembering import Remembering, is_finite, is_finite_on_device
from quorate.wire.cut import all_reduce_bytes
from quorate.wire.work import Stages


@dataclass(frozen=True, kw_only=True)
class PowerSGDSettings(ReducerSettings):
    """Each gradient matrix as a product of two thin matrices."""

    rank: int = 4
    """r: number of columns of the thin matrices."""
    start: int = 10
    """Number of uncompressed sums at the start."""
    min_rate: float = 2.0
    """Minimum compression factor: a tensor is compressed only if it becomes at least this many times smaller."""
    warm_start: bool = True
    """Whether power iteration starts from the result of the previous step; otherwise it starts from random numbers in
    each step."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigurationError(f"rank is {self.rank}; it must be a number of columns (at least 1)")
        if self.start < 0:
            raise ConfigurationError(f"start is {self.start}; it must be a number of steps (at least 0)")
        if not self.min_rate >= 1:
            raise ConfigurationError(f"min_rate is {self.min_rate}; it must be a factor (at least 1)")

    def reducer(self, layout: Layout, wire: Wire, seed: int) -> Reducer:
        return PowerSGD(layout, wire, self, seed)


@dataclass(kw_only=True)
class PowerSGDState:
    """The memory of one worker."""

    error: Flat = kept("sum")
    """The part of this worker's gradients that was left out."""
    q: dict[str, Tensor] = kept("same")
    """By the name of the tensor, the right thin matrix (m, r) of the newest sum; zeros before the first."""
    sums: int = kept("same", default=0)
    """The number of sums so far."""


@dataclass
class _Matrix:
    """One compressed tensor of a part."""

    segment: Segment
    n: int
    m: int
    rank: int

    def of(self, x: Tensor) -> Tensor:
        """Return the numbers of the tensor in a part, as a matrix (n, m)."""
        return x[self.segment.offset : self.segment.offset + self.n * self.m].view(self.n, self.m)


@dataclass
class _Part:
    """The matrices of a coded part, and where its other tensors are."""

    matrices: list[_Matrix] = field(default_factory=list)
    others: list[tuple[int, int]] = field(default_factory=list)

    def others_of(self, x: Tensor) -> list[Tensor]:
        return [x[begin:end] for begin, end in self.others]


@dataclass
class _PartUnderWay:
    """One part of a sum under way: M, laid out as the part, or None if it is dense; Q by tensor."""

    m: Tensor | None
    q: list[Tensor] = field(default_factory=list)


class PowerSGD(Remembering):
    """Each gradient matrix as a product of two thin ones; parts that are not coded are summed unchanged."""

    def __init__(self, layout: Layout, wire: Wire, settings: PowerSGDSettings, seed: int) -> None:
        super().__init__(layout, wire, coded_segments(layout))
        self.settings, self._seed = settings, seed
        self._parts = {number: self._cut(inside) for number, inside in coded_segments(layout).items()}
        matrices = [(x, layout.parts[part]) for part, cut in self._parts.items() for x in cut.matrices]
        q = {x.segment.name: torch.zeros(x.m, x.rank, dtype=of.dtype, device=of.device) for x, of in matrices}
        self._state = PowerSGDState(error=Flat.zeros(bare_layout(layout)), q=q)
        self._first_q: dict[str, Tensor] = {}
        """On a GPU, the Q that takes the place of zeros, by the name of the tensor."""
        self._parts_under_way: dict[int, _PartUnderWay] = {}
        self._next: dict[int, tuple[Tensor, dict[str, Tensor]]] = {}
        """The memory of each part as it is once the newest sum counts: the error, and each Q."""

    def _cut(self, segments: Sequence[Segment]) -> _Part:
        part = _Part()
        for segment in segments:
            n = segment.shape[0] if segment.shape else 1
            m = segment.numel // n if n else 0
            rank = min(n, m, self.settings.rank)
            if rank and (n + m) * rank * self.settings.min_rate <= n * m:
                part.matrices.append(_Matrix(segment, n, m, rank))
            else:
                part.others.append((segment.offset, segment.offset + segment.numel))
        return part

    @property
    def state(self) -> PowerSGDState:
        self.commit()
        return self._state

    def share_errors(self, errors: Flat) -> None:
        """Keep the errors in `errors`, with those that another codec has left there."""
        self._state.error = errors

    def commit(self) -> None:
        if self._is_over:
            for part, (error, q) in self._next.items():
                self._state.error.parts[part].copy_(error)
                self._state.q.update(q)
            self._state.sums += 1
            self._next, self._parts_under_way, self._is_over = {}, {}, False

    def retract(self) -> None:
        self._next, self._parts_under_way, self._is_over = {}, {}, False

    def follows(self, before: Reducer) -> None:
        assert isinstance(before, PowerSGD)
        old = before.state
        self._state.sums = old.sums
        carry_coded(old.error, self._state.error)
        self._state.q = {name: old.q.get(name, q) for name, q in self._state.q.items()}

    # -- a sum

    def _launched(self, part: int, x: Tensor) -> Work[Any]:
        cut = self._parts[part]
        if self._state.sums < self.settings.start or not cut.matrices:
            self._parts_under_way[part] = _PartUnderWay(None)
            return self.wire.all_reduce(x)
        with self.spending("encode"):
            m = x + self._state.error.parts[part]
            qs = [self._q_of(matrix, m) for matrix in cut.matrices]
            self._parts_under_way[part] = _PartUnderWay(m, qs)
            thin = [matrix.of(m) @ q for matrix, q in zip(cut.matrices, qs, strict=True)]
            sent = torch.cat([y.reshape(-1) for y in (*thin, *cut.others_of(m))])
        return self.wire.all_reduce(sent)

    def _q_of(self, matrix: _Matrix, like: Tensor) -> Tensor:
        q = self._state.q.get(matrix.segment.name) if self.settings.warm_start else None
        is_kept = q is not None and q.shape == (matrix.m, matrix.rank)
        if like.device.type != "cpu" and is_kept and q is not None:  # which does not wait to see whether there is one
            first = self._first_q.get(matrix.segment.name)
            if first is None:
                first = self._first_q[matrix.segment.name] = self._drawn(matrix, like)
            return q.to(like).where(q.any(), first)
        return q.to(like) if is_kept and q is not None and bool(q.any()) else self._drawn(matrix, like)

    def _drawn(self, matrix: _Matrix, like: Tensor) -> Tensor:
        draw = Draw(seed=self._seed, round=self._state.sums, part=matrix.segment.part)
        numbers = torch.randn(matrix.m, matrix.rank, generator=draw.generator(torch.device("cpu"), shared=True))
        return to_device(numbers, like) if like.device.type != "cpu" else numbers.to(like)

    def _finish(self, into: Mapping[int, Tensor], results: Mapping[int, Tensor]) -> Stages[None]:
        """Sum Q, and write the products."""
        thin = self._bases(results)
        second: dict[int, Work[Tensor]] = {}
        for part, x in into.items():
            m, cut = self._parts_under_way[part].m, self._parts[part]
            if m is None:
                continue
            with self.spending("encode"):
                *_, others = results[part].split([matrix.n * matrix.rank for matrix in cut.matrices] + [_rest(cut)])
                for place, numbers in zip(cut.others_of(x), others.split([e - b for b, e in cut.others]), strict=True):
                    place.copy_(numbers)
                ps = thin[part]
                sent = torch.cat([(matrix.of(m).T @ p).reshape(-1) for p, matrix in zip(ps, cut.matrices, strict=True)])
                self._remember(part, m, ps, sent)
            second[part] = self.wire.all_reduce(sent)
        if second and into[max(second)].device.type != "cpu":
            yield second[max(second)]  # by when the GPU has the others
        for part, work in second.items():
            sums_of_q = yield work
            with self.spending("decode"):
                self._multiply(part, into[part], thin[part], sums_of_q)

    def _bases(self, results: Mapping[int, Tensor]) -> dict[int, list[Tensor]]:
        """Return orthonormal columns for the sum P of each matrix, by part: on a GPU all of one shape at once."""
        sums: list[Tensor] = []
        parts = [part for part in results if self._parts_under_way[part].m is not None]
        for part in parts:
            matrices = self._parts[part].matrices
            pieces = results[part].split([matrix.n * matrix.rank for matrix in matrices] + [_rest(self._parts[part])])
            sums += [p.view(-1, matrix.rank) for p, matrix in zip(pieces, matrices, strict=False)]
        with self.spending("encode"):
            bases = iter(_all_orthonormal(sums))
        return {part: [next(bases) for _ in self._parts[part].matrices] for part in parts}

    def _qs(self, part: int, numbers: Tensor) -> list[Tensor]:
        matrices = self._parts[part].matrices
        pieces = numbers.split([matrix.m * matrix.rank for matrix in matrices])
        return [piece.view(matrix.m, matrix.rank) for piece, matrix in zip(pieces, matrices, strict=True)]

    def _remember(self, part: int, m: Tensor, ps: Sequence[Tensor], own: Tensor) -> None:
        """Subtract this worker's product from M, which becomes the error; a non-finite part leaves none."""
        is_here = own.device.type == "cpu"
        if is_here and not is_finite(own):
            self._next.pop(part, None)
            return
        cut = self._parts[part]
        for matrix, p, q in zip(cut.matrices, ps, self._qs(part, own), strict=True):
            matrix.of(m).sub_(p @ q.T)
        for place in cut.others_of(m):
            place.zero_()
        self._next[part] = (m if is_here else m.where(is_finite_on_device(own), self._state.error.parts[part]), {})

    def _multiply(self, part: int, into: Tensor, ps: Sequence[Tensor], numbers: Tensor) -> None:
        qs, is_here = {}, numbers.device.type == "cpu"
        finite = None if is_here else is_finite_on_device(numbers)
        for matrix, p, q in zip(self._parts[part].matrices, ps, self._qs(part, numbers), strict=True):
            matrix.of(into).copy_(p @ q.T)
            name = matrix.segment.name
            qs[name] = q.clone() if finite is None else q.where(finite, self._state.q[name].to(q))
        if part in self._next and (not is_here or is_finite(numbers)):
            self._next[part] = (self._next[part][0], qs)

    def wire_bytes(self, size: int) -> int:
        """Return the bytes that one worker sends for one sum after the first `start`."""
        total = 0
        for number, part in enumerate(self.layout.parts):
            numbers = part.numel
            if number in self._parts and self._parts[number].matrices:
                cut = self._parts[number]
                numbers = sum(matrix.n * matrix.rank for matrix in cut.matrices) + _rest(cut)
                second = sum(matrix.m * matrix.rank for matrix in cut.matrices)
                total += all_reduce_bytes(second * part.dtype.itemsize, size)
            total += all_reduce_bytes(numbers * part.dtype.itemsize, size)
        return total

    # -- for sums that are formed again

    def message(self, x: Flat) -> tuple[Tensor, ...]:
        """Return the dense parts; `_next` is left empty, so the error does not change."""
        self._next = {}
        return x.parts


def _rest(cut: _Part) -> int:
    return sum(end - begin for begin, end in cut.others)


def _all_orthonormal(all_: Sequence[Tensor]) -> list[Tensor]:
    """Return `_orthonormal` of each matrix; those of one shape on a GPU together, and no thread waits for it."""
    if not all_ or all_[0].device.type == "cpu":
        return [_orthonormal(p) for p in all_]
    bases: list[Tensor] = list(all_)
    by_shape: dict[torch.Size, list[int]] = {}
    for place, p in enumerate(all_):
        by_shape.setdefault(p.shape, []).append(place)
    for places in by_shape.values():
        p = torch.stack([all_[place] for place in places])
        finite = p.isfinite().flatten(1).all(1).view(-1, 1, 1)
        safe = p.where(finite, 0.0)
        scale = safe.abs().amax((1, 2), keepdim=True)
        basis = torch.linalg.qr(safe / scale.where(scale > 0, 1.0))[0].where(finite, math.nan)
        for place, basis_of_one in zip(places, basis.unbind(), strict=True):
            bases[place] = basis_of_one
    return bases


def _orthonormal(p: Tensor) -> Tensor:
    """Return an orthonormal basis of the columns of `p` (n, r), completed where its rank is below r."""
    if not is_finite(p):
        return torch.full_like(p, math.nan)
    scale = p.abs().max()
    basis: Tensor = torch.linalg.qr(p / scale if float(scale) > 0 else p)[0]
    return basis
