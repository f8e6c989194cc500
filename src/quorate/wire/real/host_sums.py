"""Sums of CPU tensors among the processes of several hosts: on each host in shared memory, then between the hosts.

Each slice of a tensor has a worker on every host (`wire.real.layout`): as soon as the numbers of all workers of its
host are there, that one adds them up, in order of rank, exchanges the host's sum for those of the others
(`wire.real.host_exchange`) and writes the sum of all, added in order of hosts, where the numbers of its host's workers
lie. So an element is ((x0 + x1) + ...) + ((xk + ...) + ...) + ..., on every worker, the first time as later.

Sums are begun in the order in which workers call them, and what travels says which sum it belongs to: nothing depends
on which is ready first. A thread of its own does all of it; it sleeps until a worker of its host has done something or
a message has come.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from quorate.wire.real.carried import Carried, Numbers
from quorate.wire.real.host_exchange import Buffer, Buffers, Exchange, Post, is_cut, most_bytes
from quorate.wire.real.layout import Layout
from quorate.wire.real.shared_segment import DONE, READY, SLOTS, SharedSegment
from quorate.wire.real.shelf import Shelf, Sum

_LOOK_SECONDS = 1.0
"""Between two looks where nothing rings."""
_CLOSES_WITHIN = 2.0


class _Begun:
    """A sum of which all numbers of this host are there."""

    def __init__(self, one: Sum) -> None:
        self.one = one
        self.exchanges: list[tuple[int, slice, Exchange]] = []
        """Those that this worker has a hand in, each with the index of its slice."""
        self.brought: list[Numbers] = []


class HostSums:
    """The sums of one channel, in the order in which every worker calls them."""

    def __init__(self, segment: SharedSegment, layout: Layout, rank: int, post: Post, tag: str) -> None:
        self._segment, self._layout, self._rank, self._post, self._tag = segment, layout, rank, post, tag
        self._place = layout.place_of(rank)
        self._shelf, self._buffers = Shelf(segment), Buffers()
        self._count = 0
        self._lock = threading.Lock()
        """Of all that follows, which belongs to the thread."""
        self._hidden, self._shown = deque[Sum](), deque[Sum]()
        """What is not yet shown to the others of the host; what is, and has not begun to be added up."""
        self._begun, self._added = deque[_Begun](), deque[_Begun]()
        """What is; and what this worker has done its part of, and not yet all of its host."""
        self._news = threading.Condition()
        self._error: BaseException | None = None
        self._is_stopped = self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def adds_small_floats(self) -> bool:
        """Whether they are given as they are, and not as float32, in which workers of one host add them."""
        return self._segment.size == 1

    def start(self, operation: str, x: Tensor, narrow: torch.dtype | None = None) -> Sum:
        """Launch the sum of `x`; every worker gives the same `operation`. Never waits. `narrow` are the floats that `x`
        is made of, where these are smaller: as what the sums of hosts travel, rounded."""
        self._count += 1
        one = Sum(x, operation, self._count, self._segment.size)
        one.narrow = narrow
        self._hidden.append(one)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="quorate-host-sums", daemon=True)
            self._thread.start()
        self._segment.ring()
        return one

    def is_done(self, one: Sum) -> bool:
        """Whether it is; never waits."""
        return one.is_over or self._error is not None

    def wait(self, one: Sum, seconds: float) -> bool:
        """Whether it is done, after at most `seconds`. Raises what has kept this worker from doing its part."""
        with self._news:
            self._news.wait_for(lambda: self.is_done(one), max(0.0, seconds))
        if self._error is not None and not one.is_over:
            raise self._error
        return one.is_over

    def stop(self) -> None:
        """A worker has failed: from now on this one writes nothing into what others have brought."""
        with self._lock:
            self._is_stopped = True

    def close(self) -> None:
        """Move nothing on any more."""
        self._is_closed = True
        if self._thread is not None:
            self._segment.ring()
            self._thread.join(timeout=_CLOSES_WITHIN)

    def missing(self, one: Sum) -> list[int]:
        """Who may not have come to it, or not have done its part; nobody, where it cannot be told."""
        with self._lock:
            segment, ranks = self._segment, self._segment.ranks
            if not segment.is_open():
                return [ranks[peer] for peer in segment.missing()]
            under_way = [begun for begun in (*self._begun, *self._added) if begun.one.number <= one.number]
            for begun in under_way[:1]:
                return self._missing_in(begun)
            for shown in list(self._shown)[:1]:
                return [ranks[peer] for peer in segment.late(READY, shown.number) or segment.untold(shown.number)]
            return []

    def _missing_in(self, begun: _Begun) -> list[int]:
        """Of a host that has not sent its sum anyone may be late; one that has done its part has told its own host."""
        hosts = {host for _, _, exchange in begun.exchanges for host in exchange.missing()}
        if hosts:
            return sorted(rank for host in hosts for rank in self._layout.hosts[host])
        one = begun.one
        slices = self._slices(one)
        found = set[int]()
        for peer in self._segment.late(DONE, one.number):
            rank = self._segment.ranks[peer]
            found.update(*(heads for index, _ in slices if rank in (heads := self._layout.heads(index))), [rank])
        return sorted(found - {self._rank})

    # -- the thread

    def _run(self) -> None:
        while not self._is_closed:
            try:
                with self._lock, np.errstate(all="ignore"):
                    while not self._is_stopped and self._segment.is_open() and self._move():
                        pass
            except BaseException as error:  # whoever waits raises it
                with self._news:
                    self._error, self._is_stopped = error, True
                    self._news.notify_all()
            self._segment.wait_for_bell(_LOOK_SECONDS)

    def _move(self) -> bool:
        """Do what can be done without waiting; whether that was anything."""
        has_shown, has_begun = self._show_next(), self._begin_next()
        return self._write_next() or self._finish_next() or has_begun or has_shown

    def _show_next(self) -> bool:
        """Show the next sum if everyone, this worker too, is done with the one whose slot it takes."""
        if not self._hidden:
            return False
        before = self._hidden[0].number - SLOTS
        oldest = next((begun.one for all_ in (self._added, self._begun) for begun in all_), None)
        oldest = oldest or next(iter(self._shown), None)
        if oldest is not None and oldest.number <= before:
            return False
        self._shelf.show(self._hidden[0])
        self._shown.append(self._hidden.popleft())
        return True

    def _begin_next(self) -> bool:
        """Add up this worker's slices of the next sum if all numbers of the host are there, and send them on."""
        segment = self._segment
        if not self._shown:
            return False
        number = self._shown[0].number
        if segment.late(READY, number) or segment.untold(number) or not segment.are_alike(number):
            return False
        begun = _Begun(self._shown[0])
        one = begun.one
        own = one.own.view(np.uint8)
        begun.brought = [x.view(one.numbers.dtype) for x in segment.brought(number, own)]
        carried = Carried(one.numbers.dtype, one.narrow)
        for index, here in self._slices(one):
            heads = self._layout.heads(index)
            if heads[self._place] == self._rank:
                own, into, buffer = self._own_of([x[here] for x in begun.brought], carried)
                tag = f"{self._tag}/{number}/{index}"
                about = (tag, one.operation, heads, self._place)
                exchange = Exchange(self._post, *about, own, into, buffer, carried)
                begun.exchanges.append((index, here, exchange))
        self._begun.append(begun)
        self._shown.popleft()
        return True

    def _slices(self, one: Sum) -> list[tuple[int, slice]]:
        return self._layout.slices(one.number, len(one.numbers), Carried(one.numbers.dtype, one.narrow).dtype.itemsize)

    def _own_of(self, brought: Sequence[Numbers], carried: Carried) -> tuple[Numbers, Numbers, Buffer]:
        """This host's sum of a slice as it travels, where the sum of all comes to lie, and memory for the exchange."""
        into, itemsize, count = brought[0], carried.dtype.itemsize, len(self._layout.hosts)
        if self._segment.size == 1 and is_cut(into.nbytes, count):
            return into, into, self._buffers.take(most_bytes(len(into), itemsize, count))
        buffer = self._buffers.take(len(into) * itemsize)
        own = buffer.of(len(into), carried.dtype)
        carried.add(brought, own)
        return own, into, buffer

    def _write_next(self) -> bool:
        """Move all exchanges on; where those of the oldest sum are through, the workers of this host get it."""
        are_through = [all(list(map(_is_through, begun.exchanges))) for begun in self._begun]
        if not are_through or not are_through[0]:
            return False
        begun = self._begun.popleft()
        for _, here, _ in begun.exchanges:
            for x in begun.brought[1:]:
                np.copyto(x[here], begun.brought[0][here])
        self._segment.post(DONE)
        begun.brought.clear()
        self._added.append(begun)
        return True

    def _finish_next(self) -> bool:
        if not self._added or self._segment.late(DONE, self._added[0].one.number):
            return False
        one = self._added.popleft().one
        self._shelf.take_back(one)
        with self._news:
            one.is_over = True
            self._news.notify_all()
        return True


def _is_through(one: tuple[int, slice, Exchange]) -> bool:
    return one[2].move()
