"""Adaptive sums by messages: the rule for two vectors, tensor by tensor, and its tree over workers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.means.algorithms.in_turn import SumInTurn, SumsInTurn, compare
from quorate.means.algorithms.steps import power_of_two

Ends = Sequence[tuple[int, int]]
"""The begin and the end of each tensor of a vector."""


def dots_of(a: Tensor, b: Tensor, ends: Ends, begin: int = 0) -> Tensor:
    """Return a.b, a.a and b.b of each tensor (rows, float64), within these pieces, which begin at `begin`."""
    dots = torch.zeros(len(ends), 3, dtype=torch.float64)
    for row, (first, last) in zip(dots, ends, strict=True):
        place = slice(max(0, first - begin), max(0, last - begin))
        x, y = a[place].double(), b[place].double()
        if x.numel():
            row.copy_(torch.stack([x.dot(y), x.dot(x), y.dot(y)]))
    return dots


def merged(a: Tensor, b: Tensor, dots: Tensor, ends: Ends, begin: int = 0) -> Tensor:
    """Return (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b for each tensor, in new memory; zeros change nothing."""
    result = torch.empty_like(a)
    for (ab, aa, bb), (first, last) in zip(dots.tolist(), ends, strict=True):
        place = slice(max(0, first - begin), max(0, last - begin))
        shares = [1.0 - (ab / squared / 2 if squared else 0.0) for squared in (aa, bb)]
        result[place] = a[place] * shares[0] + b[place] * shares[1]
    return result


def adaptive_sum(vectors: Sequence[Tensor], ends: Ends) -> Tensor:
    """Return the adaptive sum of vectors in order of rank, as `AdaptiveSums` but for rounding; in new memory."""
    sums = [as_numbers(x) for x in vectors]
    ends = in_numbers(ends, vectors[0])

    def pair(a: Tensor, b: Tensor) -> Tensor:
        return merged(a, b, dots_of(a, b, ends), ends)

    surplus = len(sums) - power_of_two(len(sums))
    sums = [pair(*sums[2 * k : 2 * k + 2]) for k in range(surplus)] + sums[2 * surplus :]
    while len(sums) > 1:
        sums = [pair(a, b) for a, b in zip(sums[::2], sums[1::2], strict=True)]
    total = torch.empty_like(vectors[0])
    as_numbers_of(total).copy_(sums[0])
    return total


def as_numbers(x: Tensor) -> Tensor:
    """Return `x`, 1-D, as real numbers of four bytes or more."""
    numbers = as_numbers_of(x)
    return numbers.float() if numbers.element_size() < 4 else numbers


def as_numbers_of(x: Tensor) -> Tensor:
    """View `x`, 1-D, as real numbers: two for each complex number."""
    return torch.view_as_real(x).view(-1) if x.is_complex() else x


def in_numbers(ends: Ends, x: Tensor) -> Ends:
    """Return `ends`, counted in real numbers."""
    return [(2 * first, 2 * last) for first, last in ends] if x.is_complex() else ends


class AdaptiveSums(SumsInTurn):
    """The sums of one reducer, by vector halving and distance doubling, in turn in a task of their own."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire, 1, ())
        core = power_of_two(wire.size)
        self._core, self._surplus = core, wire.size - core
        self._cuts: dict[int, Ends] = {}
        """Ends of tensors, by the number of the sum."""
        self._leaving: list[tuple[Work[None], int]] = []
        """Messages of the sum that is being formed, with their receivers."""

    def of(self, x: Tensor, ends: Ends) -> Work[Tensor]:
        """Return the adaptive sum of the `x` of all workers, written into `x`; never waits."""
        if self._wire.size > 1:
            self._cuts[self._started] = in_numbers(ends, x)
        return self.start(x)

    def _form(self, wire: Wire, sum_: SumInTurn) -> None:
        self._leaving.clear()
        self._form_tree(wire, sum_)
        for leaves, peer in self._leaving:
            self._patiently(leaves, peer)

    def _form_tree(self, wire: Wire, sum_: SumInTurn) -> None:
        x, ends = as_numbers_of(sum_.moved.view(-1)), self._cuts.pop(sum_.number)
        own = wire.empty(x.numel(), torch.float32 if x.element_size() < 4 else x.dtype).copy_(x)
        is_paired = wire.rank < 2 * self._surplus
        if not is_paired:
            x.copy_(self._among(wire, sum_.number, wire.rank - self._surplus, own, ends))
        elif wire.rank % 2:
            asked = wire.receive(wire.rank - 1, f"{sum_.number}/out", self._others)
            self._send(wire, f"{sum_.number}/in", wire.rank - 1, own)
            x.copy_(self._received(wire, asked, wire.rank - 1, own))
        else:
            asked = wire.receive(wire.rank + 1, f"{sum_.number}/in", self._others)
            theirs = self._received(wire, asked, wire.rank + 1, own)
            both = merged(own, theirs, dots_of(own, theirs, ends), ends)
            total = self._among(wire, sum_.number, wire.rank // 2, both, ends)
            self._send(wire, f"{sum_.number}/out", wire.rank + 1, total)
            x.copy_(total)

    def _among(self, wire: Wire, number: int, place: int, x: Tensor, ends: Ends) -> Tensor:
        """Return the sum among a power of two of workers: each step halves vectors, and merges twice as many."""
        held, begin, distance, others = x, 0, 1, list[Tensor]()
        while distance < self._core:
            peer, is_lower, middle = self._rank_at(place ^ distance), not place & distance, len(held) // 2
            kept, sent = (held[:middle], held[middle:]) if is_lower else (held[middle:], held[:middle])
            begin += 0 if is_lower else middle
            theirs = self._exchange(wire, f"{number}/half/{distance}", peer, sends=sent, receives=kept)
            a, b = (kept, theirs) if is_lower else (theirs, kept)
            dots, step = dots_of(a, b, ends, begin), 1
            while step <= distance:  # workers that hold the other pieces of the same two vectors
                tag = f"{number}/dots/{distance}/{step}"
                dots = dots + self._exchange(wire, tag, self._rank_at(place ^ step), sends=dots, receives=dots)
                step *= 2
            held = merged(a, b, dots, ends, begin)
            others.append(sent)
            distance *= 2
        while distance > 1:
            distance //= 2
            peer, tag = self._rank_at(place ^ distance), f"{number}/whole/{distance}"
            theirs = self._exchange(wire, tag, peer, sends=held, receives=others.pop())
            held = torch.cat([theirs, held] if place & distance else [held, theirs])
        return held

    def _rank_at(self, place: int) -> int:
        return 2 * place if place < self._surplus else place + self._surplus

    def _exchange(self, wire: Wire, tag: str, peer: int, *, sends: Tensor, receives: Tensor) -> Tensor:
        """Return the message of `peer`, which is like `receives`, while it gets what this worker `sends`."""
        asked = wire.receive(peer, tag, self._others)
        self._send(wire, tag, peer, sends)
        return self._received(wire, asked, peer, receives)

    def _send(self, wire: Wire, tag: str, peer: int, x: Tensor) -> None:
        """Send `x`, which is never changed afterwards: others may read the same memory."""
        self._leaving.append((wire.send(Message((x,), shared=True), peer, tag), peer))

    def _received(self, wire: Wire, asked: Work[tuple[int, Message]], peer: int, like: Tensor) -> Tensor:
        _, message = self._patiently(asked, peer)
        compare(wire.rank, [like], peer, message.tensors)
        return message.tensors[0]
