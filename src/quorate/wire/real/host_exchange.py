"""The sum of one slice over several hosts: each host's own sum of it goes out, and the sum of all comes back.

A small slice, or one between two hosts, is sent whole to every other host, and each adds up all of them: (H - 1) n
bytes out and in, one hop. A large one among three and more is cut into a piece for each host, which gets that piece of
all, adds it up and sends the sum to the others: 2 (H - 1) / H n bytes out and in, two hops. Either way hosts are added
in order. What is sent says what it is part of; what is part of something else is never added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from quorate.core.contracts import Message, Work
from quorate.wire.cut import piece
from quorate.wire.real.carried import Carried, Numbers
from quorate.wire.real.inbox import Waiting

DIRECT_BYTES = 1 << 16
"""Of a slice that is sent whole to every other host; a second hop takes longer."""
_KEPT = 8


class Post:
    """How what hosts tell each other travels."""

    def __init__(self, send: Callable[[Message, int, str], Work[None]], ask: Callable[[int, str], Waiting]) -> None:
        self.send, self.ask = send, ask


class Buffer:
    """Memory for a host's sum of one slice; it is used again once nobody holds it, and what was sent has gone out."""

    def __init__(self, nbytes: int) -> None:
        self.memory: Numbers = np.empty(nbytes, np.uint8)
        self.is_held = False
        self.sent: list[Work[None]] = []

    def of(self, numel: int, dtype: np.dtype[Any]) -> Numbers:
        """Its beginning, as so many numbers."""
        found: Numbers = self.memory[: numel * dtype.itemsize].view(dtype)
        return found

    def fits(self, nbytes: int) -> bool:
        """Whether it is free, and neither too small nor more than twice too large."""
        is_free = not self.is_held and all(work.done() for work in self.sent)
        return is_free and nbytes <= len(self.memory) <= 2 * nbytes


class Buffers:
    """Those of one channel, of which a few are kept."""

    def __init__(self) -> None:
        self._all: list[Buffer] = []

    def take(self, nbytes: int) -> Buffer:
        """One that this caller holds from now on."""
        found = next((one for one in self._all if one.fits(nbytes)), None)
        if found is None:
            found = Buffer(nbytes)
            self._all = [found, *self._all[: _KEPT - 1]]
        found.is_held, found.sent = True, []
        return found


class Exchange:
    """Of one slice. `own` is the sum of this host, number `place` of the hosts whose `heads` exchange it.

    The sum of all comes to lie `into`, which may be `own` itself where a slice is cut: a piece that has been sent to a
    host is only written to when that host's sum of it is here. What may still be on its way when all is done lies in
    `buffer`, of which `own` is the beginning where it is not `into`. Begun when it is made; moved on without waiting.
    """

    def __init__(
        self,
        post: Post,
        tag: str,
        what: int,
        heads: Sequence[int],
        place: int,
        own: Numbers,
        into: Numbers,
        buffer: Buffer,
        carried: Carried,
    ) -> None:
        """`own` holds numbers as they travel; `into` may hold them as they are added."""
        self._post, self._tag, self._what, self._heads, self._place = post, tag, what, heads, place
        self._own, self._into, self._buffer, self._carried = own, into, buffer, carried
        self._others = [host for host in range(len(heads)) if host != place]
        is_direct = not is_cut(own.nbytes, len(heads))
        assert not (is_direct and own is into)
        self._pieces = [slice(0, len(own))] * len(heads) if is_direct else _pieces(len(own), len(heads))
        """Of each host, which it adds up."""
        self._parts = {host: self._ask(host, "part") for host in self._others} if self._adds else {}
        self._sums = {} if is_direct else {host: self._ask(host, "sum") for host in self._others if self._has(host)}
        for host in self._others:
            if self._has(host):
                self._send(host, "part", own[self._pieces[host]])
        self._is_direct, self._is_added = is_direct, not self._adds

    def missing(self) -> list[int]:
        """From which hosts, by number, something is still to come that waits for no other host."""
        late = [host for host, asked in self._parts.items() if self._lacks(asked)]
        return late or [host for host, asked in self._sums.items() if self._lacks(asked)]

    def move(self) -> bool:
        """Do what can be done now; whether the sum is there."""
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
        given = [by_host[host] for host in sorted(by_host)]
        self._parts, self._is_added = {}, True
        if self._is_direct:
            self._carried.add(given, into)
            return
        if self._own is self._into:
            total = self._buffer.of(len(into), self._carried.dtype)
            self._carried.add(given, total, into)
        else:
            total = self._own[here]  # nobody was sent that; from there it can go out at leisure
            self._carried.add(given, into, total)
        for host in self._others:
            self._send(host, "sum", total)

    def _send(self, host: int, kind: str, numbers: Numbers) -> None:
        message = Message((torch.from_numpy(numbers.view(np.uint8)),), {"of": self._what})
        self._buffer.sent.append(self._post.send(message, self._heads[host], f"{self._tag}/{kind}"))

    def _ask(self, host: int, kind: str) -> Waiting:
        return self._post.ask(self._heads[host], f"{self._tag}/{kind}")

    def _lacks(self, asked: Waiting) -> bool:
        return asked.result is None or asked.result[1].header.get("of") != self._what

    def _numbers(self, asked: Waiting) -> Numbers:
        assert asked.result is not None
        found: Numbers = asked.result[1].tensors[0].numpy().view(self._own.dtype)
        return found


def is_cut(nbytes: int, count: int) -> bool:
    """Whether a slice of so many bytes as they travel is, among `count` hosts."""
    return count > 2 and nbytes > DIRECT_BYTES


def most_bytes(numel: int, itemsize: int, count: int) -> int:
    """Of the largest piece of a slice that is cut among `count` hosts."""
    return len(range(*_pieces(numel, count)[0].indices(numel))) * itemsize


def _pieces(numel: int, count: int) -> list[slice]:
    return [piece(numel, host, count) for host in range(count)]
