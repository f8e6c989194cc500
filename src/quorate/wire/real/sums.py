"""Sums of CPU tensors among processes of one host, formed in memory that they share, in order of rank.

A small tensor is written into this worker's slot; every worker adds up all slots (one hop; (P - 1) n bytes read). A
large one lies in shared memory, or is copied there; when everyone's is there, worker r adds up piece r of all and
writes the sum to all (two hops; n bytes read and n written by each worker, none of them copied on the way). Either way
an element is added as x0 + x1 + x2 + ..., so that everyone has the bits that rounds have.

Nothing here waits but `wait`. What is under way moves on whenever this process calls a sum, waits for one or asks
whether one is done; where it does none of these, a thread beside it looks now and then.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quorate.core.contracts import Write
from quorate.core.errors import QuorateError
from quorate.wire.cut import piece
from quorate.wire.real.endpoint import Endpoint
from quorate.wire.real.shared_segment import DONE, READY, SLOTS, Send, SharedSegment, add_up, slices_at_once
from quorate.wire.real.shelf import Shelf, Sum

_LOOK_SECONDS = 0.005
"""Between two looks of the thread beside."""


class Sums:
    """The sums of one channel, in the order in which every worker calls them."""

    adds_small_floats = False
    """See `HostSums`."""

    def __init__(self, endpoint: Endpoint, tag: str, send: Send, beside: Beside) -> None:
        self._beside = beside
        self._segment = SharedSegment(endpoint, tag, send, range(endpoint.size))
        self._shelf = Shelf(self._segment)
        self._lock = threading.Lock()
        self._count = 0
        self._hidden, self._shown, self._added = deque[Sum](), deque[Sum](), deque[Sum]()
        """What is not yet shown to others; shown, and not yet added up; added up, and not yet by all."""
        self._is_stopped = False

    def start(self, operation: str, x: Tensor, narrow: torch.dtype | None = None) -> Sum:
        """Launch the sum of `x`; every worker gives the same `operation`. Never waits. Nothing travels as `narrow`."""
        return self._begin(operation, x)

    def put(self, operation: str, x: Tensor, write: Write) -> Sum:
        """Have `write` write this worker's piece of everyone's `x`, in this thread. Never waits."""
        return self._begin(operation, x, write=write)

    def look_at(self, operation: str, x: Tensor) -> Sum:
        """Find this worker's piece of everyone's `x`, where it lies. Never waits."""
        return self._begin(operation, x, is_looked_at=True)

    def _begin(self, operation: str, x: Tensor, **how: Any) -> Sum:
        self._count += 1
        one = Sum(x, operation, self._count, self._segment.size, **how)
        self._hidden.append(one)
        if self._lock.acquire(blocking=False):
            try:
                self._move()
            finally:
                self._lock.release()
        if not one.is_over:
            self._beside.look_after(self)
        return one

    def is_done(self, one: Sum) -> bool:
        """Whether it is; never waits."""
        if not one.is_over:
            self.help()
        return one.is_over

    def help(self, *, is_beside: bool = False) -> bool:
        """Move on what can be, but for what others have to write where this is a thread beside; whether anything is
        left."""
        if self._lock.acquire(blocking=False):
            try:
                self._move(is_beside=is_beside)
            finally:
                self._lock.release()
        return not self._is_stopped and bool(self._hidden or self._shown or self._added)

    def wait(self, one: Sum, seconds: float) -> bool:
        """Whether it is done, after at most `seconds`."""
        deadline = time.monotonic() + seconds
        if not self._lock.acquire(timeout=max(0.0, seconds)):
            return one.is_over
        try:
            while True:
                self._move()
                left = deadline - time.monotonic()
                if one.is_over or left <= 0:
                    return one.is_over
                self._wait_for_news(one, left)
        finally:
            self._lock.release()

    def stop(self) -> None:
        """A worker has failed: from now on this one writes nothing into what others have brought."""
        with self._lock:
            self._is_stopped = True

    def missing(self, one: Sum) -> list[int]:
        """Who has not come to it, or has not done its part; nobody, where it cannot be told."""
        with self._lock:
            peer, _ = self._held_by(one)
            return peer

    def _held_by(self, one: Sum) -> tuple[list[int], int | None]:
        """Who is to do something next, and the semaphore that tells of it; None where a message does."""
        segment = self._segment
        if not segment.is_open():
            return segment.missing(), None
        if not one.is_added and self._shown:
            first = self._shown[0].number
            late = segment.late(READY, first)
            return (late, READY) if late else (segment.untold(first), None)
        if not one.is_added:
            return segment.late(DONE, self._hidden[0].number - SLOTS), DONE
        return segment.late(DONE, one.number), DONE

    def _wait_for_news(self, one: Sum, seconds: float) -> None:
        late, semaphore = self._held_by(one)
        if self._is_stopped:
            time.sleep(seconds)
        elif not late:
            if self._shown and not self._segment.are_alike(self._shown[0].number):
                time.sleep(seconds)  # others mean something else: there is nothing to come
        elif semaphore is None:
            self._segment.wait_for_message(late[0], seconds)
        else:
            self._segment.wait_for_semaphore(late[0], semaphore, seconds)

    # -- one after the other, without waiting

    def _move(self, *, is_beside: bool = False) -> None:
        if self._is_stopped or not self._segment.is_open():
            return
        while self._show_next(is_beside) or self._add_next(is_beside):
            pass
        while self._added and not self._segment.late(DONE, self._added[0].number):
            self._finish(self._added.popleft())

    def _show_next(self, is_beside: bool) -> bool:
        """Show the next sum if everyone, this worker too, has read the one whose slot it takes."""
        if not self._hidden or (is_beside and self._hidden[0].write is not None):
            return False
        one, before = self._hidden[0], self._hidden[0].number - SLOTS
        if (self._shown and self._shown[0].number <= before) or self._segment.late(DONE, before):
            return False
        self._shelf.show(one)
        self._shown.append(self._hidden.popleft())
        return True

    def _add_next(self, is_beside: bool) -> bool:
        """Do this worker's part of the next sum if everyone's numbers are there."""
        if not self._shown or not self._may_add(self._shown[0].number):
            return False
        one = self._shown[0]
        if is_beside and one.write is not None:
            return False
        self._add(one)
        self._segment.post(DONE)
        self._shown.popleft()
        one.is_added = True
        if one.is_small or one.is_looked_at:
            one.is_over, one.staged = True, None  # others may look at what was staged
        else:
            self._added.append(one)
        return True

    def _may_add(self, number: int) -> bool:
        segment = self._segment
        return not segment.late(READY, number) and not segment.untold(number) and segment.are_alike(number)

    def _add(self, one: Sum) -> None:
        own = one.own.view(np.uint8)
        brought = [x.view(one.numbers.dtype) for x in self._segment.brought(one.number, own)]
        if one.is_small and not one.is_looked_at and one.write is None:
            with np.errstate(all="ignore"):
                add_up(brought, one.numbers)
            return
        mine = piece(len(one.numbers), self._segment.rank, self._segment.size)
        with np.errstate(all="ignore"):
            if one.is_looked_at:
                one.found = [x[mine].copy() if one.is_small else x[mine] for x in brought]
                return
            if one.write is not None:
                self._put(one, mine, brought)
                return
            for here in slices_at_once(mine, one.numbers.itemsize):
                total = brought[0][here]
                add_up([x[here] for x in brought], total)
                for x in brought[1:]:
                    np.copyto(x[here], total)

    def _put(self, one: Sum, mine: slice, brought: Sequence[NDArray[Any]]) -> None:
        """Write this worker's piece of everyone's; of small tensors take everyone's pieces."""
        if not one.is_small or len(brought) == 1:
            one.written_to([x[mine] for x in brought])
            return
        for rank, x in enumerate(brought):
            here = piece(len(x), rank, len(brought))
            one.numbers[here] = x[here]

    def _finish(self, one: Sum) -> None:
        self._shelf.take_back(one)
        one.is_over = True


class Beside:
    """A thread that moves on sums nobody waits for; it starts with the first, and sleeps while there are none."""

    def __init__(self) -> None:
        self._called = threading.Event()
        self._lock = threading.Lock()
        self._all = set[Sums]()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def look_after(self, sums: Sums) -> None:
        """Move them on now and then, until nothing is under way."""
        with self._lock:
            self._all.add(sums)
        self._called.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="quorate-sums", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._is_closed:
            if not self._called.wait(1.0):
                continue
            time.sleep(_LOOK_SECONDS)
            self._called.clear()
            with self._lock:
                under_way, self._all = self._all, set()
            for sums in under_way:
                try:
                    is_left = sums.help(is_beside=True)
                except (QuorateError, OSError, MemoryError):
                    continue  # whoever waits for it meets the same
                if is_left:
                    self.look_after(sums)

    def close(self) -> None:
        """Move nothing on any more."""
        self._is_closed = True
        self._called.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
