"""The sum of one slice over several hosts: each host sends its own sum, and receives the sum of all.

A small slice, or one between two hosts, is sent to every other host, and each adds up all of them: (H - 1) n bytes out
and in, one hop. A large one among three and more is cut into a piece for each host. That host receives this piece of
all, adds it up and sends the sum to the others: 2 (H - 1) / H n bytes out and in, two hops. In both cases hosts are
added in order. Messages contain the operation; those of another operation are never added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from quorate.core.contracts import Message, Work
from quorate.wire.boxes import Waiting
from quorate.wire.cut import piece
from quorate.wire.real.carried import Carried, Numbers

DIRECT_BYTES = 1 << 16
"""Largest slice that is sent to every other host uncut; a second hop takes longer."""
_KEPT = 8


class Post:
    """The functions by which hosts send and receive messages."""

    def __init__(self, send: Callable[[Message, int, str], Work[None]], ask: Callable[[int, str], Waiting]) -> None:
        self.send, self.ask = send, ask


class Buffer:
    """Memory for a host's sum of one slice; it is used again once it is not held, and all is sent."""

    def __init__(self, nbytes: int) -> None:
        self.memory: Numbers = np.empty(nbytes, np.uint8)
        self.is_held = False
        self.sent: list[Work[None]] = []

    def of(self, numel: int, dtype: np.dtype[Any]) -> Numbers:
        """Return its beginning, as `numel` numbers."""
        numbers: Numbers = self.memory[: numel * dtype.itemsize].view(dtype)
        return numbers

    def fits(self, nbytes: int) -> bool:
        """Whether it is free, and has `nbytes` up to twice as many."""
        is_free = not self.is_held and all(work.done() for work in self.sent)
        return is_free and nbytes <= len(self.memory) <= 2 * nbytes


class Buffers:
    """The buffers of one channel, of which a few are kept."""

    def __init__(self) -> None:
        self._all: list[Buffer] = []

    def take(self, nbytes: int) -> Buffer:
        """Return a buffer, which the caller holds from now on."""
        buffer = next((kept for kept in self._all if kept.fits(nbytes)), None)
        if buffer is None:
            buffer = Buffer(nbytes)
            self._all = [buffer, *self._all[: _KEPT - 1]]
        buffer.is_held, buffer.sent = True, []
        return buffer


class Exchange:
    """The exchange of one slice. `own` is the sum of this host, number `place` of the hosts whose `heads` exchange it.

    The sum of all is written to `into`, which may be `own` itself where a slice is cut. A piece that has been sent to a
    host is written to only once that host's sum of it has arrived. Numbers that may still be on their way at the end
    lie in `buffer`, of which `own` is the beginning where it is not `into`. Begins when made; `move` never waits.
    """

    def __init__(
        self,
        post: Post,
        tag: str,
        operation: int,
        heads: Sequence[int],
        place: int,
        own: Numbers,
        into: Numbers,
        buffer: Buffer,
        carried: Carried,
    ) -> None:
        """`own` has the sent form; `into` may have that of the addition."""
        self._post, self._tag, self._operation, self._heads, self._place = post, tag, operation, heads, place
        self._own, self._into, self._buffer, self._carried = own, into, buffer, carried
        self._others = [host for host in range(len(heads)) if host != place]
        is_direct = not is_cut(own.nbytes, len(heads))
        assert not (is_direct and own is into)
        self._pieces = [slice(0, len(own))] * len(heads) if is_direct else _pieces(len(own), len(heads))
        """The piece that each host adds up."""
        self._parts = {host: self._ask(host, "part") for host in self._others} if self._adds else {}
        self._sums = {} if is_direct else {host: self._ask(host, "sum") for host in self._others if self._has(host)}
        for host in self._others:
            if self._has(host):
                self._send(host, "part", own[self._pieces[host]])
        self._is_direct, self._is_added = is_direct, not self._adds

    def missing(self) -> list[int]:
        """Return the hosts, by number, with a missing message that waits for no other host."""
        late = [host for host, asked in self._parts.items() if self._lacks(asked)]
        return late or [host for host, asked in self._sums.items() if self._lacks(asked)]

    def move(self) -> bool:
        """Make progress; return whether the sum is there."""
        if not self._is_added and not any(map(self._lacks, self._parts.values())):
            self._add()
        for host, asked in list(self._sums.items()):
            if not self._lacks(asked):
                self._carried.add([self._numbers(asked)], self._into[self._pieces[host]])
                del self._sums[host]
        self._buffer.is_held = not self._is_added or bool(self._sums)
        return not self._buffer.is_held

    @property
    def _adds(self) -> bool:
        return self._has(self._place)

    def _has(self, host: int) -> bool:
        return self._pieces[host].stop > self._pieces[host].start

    def _add(self) -> None:
        here = self._pieces[self._place]
        by_host = {host: self._numbers(asked) for host, asked in self._parts.items()}
        by_host[self._place], into = self._own[here], self._into[here]
        terms = [by_host[host] for host in sorted(by_host)]
        self._parts, self._is_added = {}, True
        if self._is_direct:
            self._carried.add(terms, into)
            return
        if self._own is self._into:
            total = self._buffer.of(len(into), self._carried.dtype)
            self._carried.add(terms, total, into)
        else:
            total = self._own[here]  # it was sent to no host, so it may be sent from there
            self._carried.add(terms, into, total)
        for host in self._others:
            self._send(host, "sum", total)

    def _send(self, host: int, kind: str, numbers: Numbers) -> None:
        message = Message((torch.from_numpy(numbers.view(np.uint8)),), {"of": self._operation})
        self._buffer.sent.append(self._post.send(message, self._heads[host], f"{self._tag}/{kind}"))

    def _ask(self, host: int, kind: str) -> Waiting:
        return self._post.ask(self._heads[host], f"{self._tag}/{kind}")

    def _lacks(self, asked: Waiting) -> bool:
        return asked.result is None or asked.result[1].header.get("of") != self._operation

    def _numbers(self, asked: Waiting) -> Numbers:
        assert asked.result is not None
        numbers: Numbers = asked.result[1].tensors[0].numpy().view(self._own.dtype)
        return numbers


def is_cut(nbytes: int, count: int) -> bool:
    """Whether a slice of `nbytes` in the sent form is cut among `count` hosts."""
    return count > 2 and nbytes > DIRECT_BYTES


def most_bytes(numel: int, itemsize: int, count: int) -> int:
    """Return the bytes of the largest piece of a slice that is cut among `count` hosts."""
    return len(range(*_pieces(numel, count)[0].indices(numel))) * itemsize


def _pieces(numel: int, count: int) -> list[slice]:
    return [piece(numel, host, count) for host in range(count)]
