"""Sums of CPU tensors among the processes of several hosts: on each host in shared memory, then between the hosts.

Each slice of a tensor has a worker on every host (`Layout`). Once the numbers of all workers of its host are
there, it adds them up in order of rank. It exchanges the host's sum for those of the others
(`wire.real.host_exchange`). Then it writes the sum of all, added in order of hosts, over the numbers of its host's
workers. So an element is ((x0 + x1) + ...) + ((xk + ...) + ...) + ..., on every worker, the first time as later.

Sums are begun in the order in which workers call them, and messages contain the number of their sum: nothing depends
on which is ready first. A separate thread does all of it; it sleeps until a worker of its host has made progress or a
message has arrived.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quorate.core.members import by_host
from quorate.wire.cut import WHOLE_BYTES, piece
from quorate.wire.real.carried import Carried, Numbers
from quorate.wire.real.host_exchange import Buffer, Buffers, Exchange, Post, is_cut, most_bytes
from quorate.wire.real.shared_segment import DONE, READY, SLOTS, SharedSegment
from quorate.wire.real.shelf import Shelf, Sum

_LOOK_SECONDS = 1.0
"""Seconds between two looks where no bell rings."""
_CLOSES_WITHIN = 2.0


class _Begun:
    """A sum for which all numbers of this host are there."""

    def __init__(self, sum_: Sum) -> None:
        self.sum = sum_
        self.exchanges: list[tuple[int, slice, Exchange]] = []
        """The exchanges of this worker, each with the index of its slice."""
        self.brought: list[Numbers] = []


class HostSums:
    """The sums of one channel, in the order in which every worker calls them."""

    def __init__(self, segment: SharedSegment, layout: Layout, rank: int, post: Post, tag: str) -> None:
        self._segment, self._layout, self._rank, self._post, self._tag = segment, layout, rank, post, tag
        self._place = layout.place_of(rank)
        self._shelf, self._buffers = Shelf(segment), Buffers()
        self._count = 0
        self._lock = threading.Lock()
        """Guards the queues below, which belong to the thread."""
        self._hidden, self._shown = deque[Sum](), deque[Sum]()
        """Sums not yet shown to the others of the host; sums shown, and not yet begun."""
        self._begun, self._added = deque[_Begun](), deque[_Begun]()
        """Sums begun; sums of which this worker has done its part, but not all workers of its host."""
        self._news = threading.Condition()
        self._error: BaseException | None = None
        self._is_stopped = self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def adds_small_floats(self) -> bool:
        """Whether small floats are passed unchanged, not as float32, in which workers of one host add them."""
        return self._segment.size == 1

    def start(self, operation: str, x: Tensor, narrow: torch.dtype | None = None) -> Sum:
        """Launch the sum of `x`; every worker passes the same `operation`. Never waits. `narrow` is the small float of
        which `x` consists, if any: the sums of hosts are rounded to it and sent."""
        self._count += 1
        sum_ = Sum(x, operation, self._count, self._segment.size)
        sum_.narrow = narrow
        self._hidden.append(sum_)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="quorate-host-sums", daemon=True)
            self._thread.start()
        self._segment.ring()
        return sum_

    def is_done(self, sum_: Sum) -> bool:
        """Whether the sum is done; never waits."""
        return sum_.is_over or self._error is not None

    def wait(self, sum_: Sum, seconds: float) -> bool:
        """Wait at most `seconds`; return whether the sum is done. Raises the error of this worker's part."""
        with self._news:
            self._news.wait_for(lambda: self.is_done(sum_), max(0.0, seconds))
        if self._error is not None and not sum_.is_over:
            raise self._error
        return sum_.is_over

    def stop(self) -> None:
        """Write nothing to other workers' numbers from now on, as a worker has failed."""
        with self._lock:
            self._is_stopped = True

    def close(self) -> None:
        """End the thread, and with it all progress."""
        self._is_closed = True
        if self._thread is not None:
            self._segment.ring()
            self._thread.join(timeout=_CLOSES_WITHIN)

    def missing(self, sum_: Sum) -> list[int]:
        """Return the ranks that may not have called it, or not have done their part; none where it is unknown."""
        with self._lock:
            segment, ranks = self._segment, self._segment.ranks
            if not segment.is_open():
                return [ranks[peer] for peer in segment.missing()]
            under_way = [begun for begun in (*self._begun, *self._added) if begun.sum.number <= sum_.number]
            for begun in under_way[:1]:
                return self._missing_in(begun)
            for shown in list(self._shown)[:1]:
                return [ranks[peer] for peer in segment.late(READY, shown.number) or segment.untold(shown.number)]
            return []

    def _missing_in(self, begun: _Begun) -> list[int]:
        """Return the ranks that may be late: all of a host that has not sent its sum, else those not done here."""
        hosts = {host for _, _, exchange in begun.exchanges for host in exchange.missing()}
        if hosts:
            return sorted(rank for host in hosts for rank in self._layout.hosts[host])
        sum_ = begun.sum
        slices = self._slices(sum_)
        late = set[int]()
        for peer in self._segment.late(DONE, sum_.number):
            rank = self._segment.ranks[peer]
            late.update(*(heads for index, _ in slices if rank in (heads := self._layout.heads(index))), [rank])
        return sorted(late - {self._rank})

    # -- the thread

    def _run(self) -> None:
        while not self._is_closed:
            try:
                with self._lock, np.errstate(all="ignore"):
                    while not self._is_stopped and self._segment.is_open() and self._move():
                        pass
            except BaseException as error:  # waits raise it
                with self._news:
                    self._error, self._is_stopped = error, True
                    self._news.notify_all()
            self._segment.wait_for_bell(_LOOK_SECONDS)

    def _move(self) -> bool:
        """Make progress without waiting; return whether there was any."""
        has_shown, has_begun = self._show_next(), self._begin_next()
        return self._write_next() or self._finish_next() or has_begun or has_shown

    def _show_next(self) -> bool:
        """Show the next sum if all workers, with this one, are done with the one whose slot it takes."""
        if not self._hidden:
            return False
        before = self._hidden[0].number - SLOTS
        oldest = next((begun.sum for all_ in (self._added, self._begun) for begun in all_), None)
        oldest = oldest or next(iter(self._shown), None)
        if oldest is not None and oldest.number <= before:
            return False
        self._shelf.show(self._hidden[0])
        self._shown.append(self._hidden.popleft())
        return True

    def _begin_next(self) -> bool:
        """Add up this worker's slices of the next sum, if all numbers of the host are there, and send them."""
        segment = self._segment
        if not self._shown:
            return False
        number = self._shown[0].number
        if segment.late(READY, number) or segment.untold(number) or not segment.are_alike(number):
            return False
        begun = _Begun(self._shown[0])
        sum_ = begun.sum
        own = sum_.own.view(np.uint8)
        begun.brought = [x.view(sum_.numbers.dtype) for x in segment.brought(number, own)]
        carried = Carried(sum_.numbers.dtype, sum_.narrow)
        for index, here in self._slices(sum_):
            heads = self._layout.heads(index)
            if heads[self._place] == self._rank:
                own, into, buffer = self._own_of([x[here] for x in begun.brought], carried)
                tag = f"{self._tag}/{number}/{index}"
                about = (tag, sum_.operation, heads, self._place)
                exchange = Exchange(self._post, *about, own, into, buffer, carried)
                begun.exchanges.append((index, here, exchange))
        self._begun.append(begun)
        self._shown.popleft()
        return True

    def _slices(self, sum_: Sum) -> list[tuple[int, slice]]:
        carried = Carried(sum_.numbers.dtype, sum_.narrow)
        return self._layout.slices(sum_.number, len(sum_.numbers), carried.dtype.itemsize)

    def _own_of(self, brought: Sequence[Numbers], carried: Carried) -> tuple[Numbers, Numbers, Buffer]:
        """Return this host's sum of a slice in the sent form, memory for the sum of all, and for the exchange."""
        into, itemsize, count = brought[0], carried.dtype.itemsize, len(self._layout.hosts)
        if self._segment.size == 1 and is_cut(into.nbytes, count):
            return into, into, self._buffers.take(most_bytes(len(into), itemsize, count))
        buffer = self._buffers.take(len(into) * itemsize)
        own = buffer.of(len(into), carried.dtype)
        carried.add(brought, own)
        return own, into, buffer

    def _write_next(self) -> bool:
        """Move all exchanges; once those of the oldest sum are through, write it for the workers of this host."""
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
        if not self._added or self._segment.late(DONE, self._added[0].sum.number):
            return False
        sum_ = self._added.popleft().sum
        self._shelf.take_back(sum_)
        with self._news:
            sum_.is_over = True
            self._news.notify_all()
        return True


def _is_through(indexed: tuple[int, slice, Exchange]) -> bool:
    return indexed[2].move()


@dataclass(frozen=True)
class Layout:
    """`hosts` has the ranks on each host, in order; hosts are in order of their lowest ranks, in which they are added.

    A tensor is cut into one slice for each worker of the largest host. Slice s is exchanged by worker s of each host,
    modulo their number where a host has fewer; so a host's workers share the traffic of its cable.
    """

    hosts: tuple[tuple[int, ...], ...]

    @property
    def width(self) -> int:
        """Number of slices of a tensor."""
        return max(map(len, self.hosts))

    def heads(self, index: int) -> list[int]:
        """Return the ranks, one of each host, that exchange slice `index`."""
        return [ranks[index % len(ranks)] for ranks in self.hosts]

    def place_of(self, rank: int) -> int:
        """Return the number of the host of `rank`."""
        return next(place for place, ranks in enumerate(self.hosts) if rank in ranks)

    def slices(self, number: int, numel: int, itemsize: int) -> list[tuple[int, slice]]:
        """Return the slices of sum `number` that are not empty, each with its index."""
        if numel * itemsize <= WHOLE_BYTES:
            return [(number % self.width, slice(0, numel))]
        cut = [(index, piece(numel, index, self.width)) for index in range(self.width)]
        return [(index, here) for index, here in cut if here.stop > here.start]


def layout_of(size: int, host_of: Callable[[int], int]) -> Layout:
    """Return the layout of workers 0 to `size` - 1; `host_of` returns the lowest rank on the host of each."""
    return Layout(tuple(map(tuple, by_host(host_of, range(size)))))
