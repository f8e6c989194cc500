"""Sums of CPU tensors among processes of one host, formed in memory that they share, in order of rank.

A small tensor is written into this worker's slot; every worker adds up all slots (one hop; (P - 1) n bytes read). A
large one lies in shared memory, or is copied there. Once all are there, worker r adds up piece r of all and writes the
sum to all. There are two hops; each worker reads n bytes and writes n, without further copies. In both cases an element
is x0 + x1 + x2 + ..., so that all workers have the bits of rounds.

Only `wait` waits. Sums under way progress whenever this process calls a sum, waits for one or asks whether one is done.
If it does none of these, a thread beside it does so now and then.
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
"""Seconds between two looks of the thread beside."""


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
        """Sums not yet shown to others; shown, and not yet added up; added up, but not yet by all."""
        self._is_stopped = False

    def start(self, operation: str, x: Tensor, narrow: torch.dtype | None = None) -> Sum:
        """Launch the sum of `x`; every worker passes the same `operation`. Never waits. `narrow` is not used."""
        return self._begin(operation, x)

    def put(self, operation: str, x: Tensor, write: Write) -> Sum:
        """Have `write` fill this worker's piece of all workers' `x`, in this thread. Never waits."""
        return self._begin(operation, x, write=write)

    def look_at(self, operation: str, x: Tensor) -> Sum:
        """Find this worker's piece of all workers' `x`, without a copy. Never waits."""
        return self._begin(operation, x, is_looked_at=True)

    def _begin(self, operation: str, x: Tensor, **options: Any) -> Sum:
        self._count += 1
        sum_ = Sum(x, operation, self._count, self._segment.size, **options)
        self._hidden.append(sum_)
        if self._lock.acquire(blocking=False):
            try:
                self._move()
            finally:
                self._lock.release()
        if not sum_.is_over:
            self._beside.look_after(self)
        return sum_

    def is_done(self, sum_: Sum) -> bool:
        """Whether the sum is done; never waits."""
        if not sum_.is_over:
            self.help()
        return sum_.is_over

    def help(self, *, is_beside: bool = False) -> bool:
        """Make progress; return whether sums are left. The thread beside (`is_beside`) leaves out sums with a `write`,
        which the caller's thread runs."""
        if self._lock.acquire(blocking=False):
            try:
                self._move(is_beside=is_beside)
            finally:
                self._lock.release()
        return not self._is_stopped and bool(self._hidden or self._shown or self._added)

    def wait(self, sum_: Sum, seconds: float) -> bool:
        """Wait at most `seconds`; return whether the sum is done."""
        deadline = time.monotonic() + seconds
        if not self._lock.acquire(timeout=max(0.0, seconds)):
            return sum_.is_over
        try:
            while True:
                self._move()
                left = deadline - time.monotonic()
                if sum_.is_over or left <= 0:
                    return sum_.is_over
                self._wait_for_news(sum_, left)
        finally:
            self._lock.release()

    def stop(self) -> None:
        """Write nothing to other workers' numbers from now on, as a worker has failed."""
        with self._lock:
            self._is_stopped = True

    def missing(self, sum_: Sum) -> list[int]:
        """Return the ranks that have not called it, or not done their part; none where it is unknown."""
        with self._lock:
            peer, _ = self._held_by(sum_)
            return peer

    def _held_by(self, sum_: Sum) -> tuple[list[int], int | None]:
        """Return the workers whose turn is next, and the semaphore that they post; None where they send a message."""
        segment = self._segment
        if not segment.is_open():
            return segment.missing(), None
        if not sum_.is_added and self._shown:
            first = self._shown[0].number
            late = segment.late(READY, first)
            return (late, READY) if late else (segment.untold(first), None)
        if not sum_.is_added:
            return segment.late(DONE, self._hidden[0].number - SLOTS), DONE
        return segment.late(DONE, sum_.number), DONE

    def _wait_for_news(self, sum_: Sum, seconds: float) -> None:
        late, semaphore = self._held_by(sum_)
        if self._is_stopped:
            time.sleep(seconds)
        elif not late:
            if self._shown and not self._segment.are_alike(self._shown[0].number):
                time.sleep(seconds)  # others called another operation: no progress is possible
        elif semaphore is None:
            self._segment.wait_for_message(late[0], seconds)
        else:
            self._segment.wait_for_semaphore(late[0], semaphore, seconds)

    # -- in order, without waiting

    def _move(self, *, is_beside: bool = False) -> None:
        if self._is_stopped or not self._segment.is_open():
            return
        while self._show_next(is_beside) or self._add_next(is_beside):
            pass
        while self._added and not self._segment.late(DONE, self._added[0].number):
            self._finish(self._added.popleft())

    def _show_next(self, is_beside: bool) -> bool:
        """Show the next sum if all workers, with this one, have read the one whose slot it takes."""
        if not self._hidden or (is_beside and self._hidden[0].write is not None):
            return False
        sum_, before = self._hidden[0], self._hidden[0].number - SLOTS
        if (self._shown and self._shown[0].number <= before) or self._segment.late(DONE, before):
            return False
        self._shelf.show(sum_)
        self._shown.append(self._hidden.popleft())
        return True

    def _add_next(self, is_beside: bool) -> bool:
        """Do this worker's part of the next sum if all numbers are there."""
        if not self._shown or not self._may_add(self._shown[0].number):
            return False
        sum_ = self._shown[0]
        if is_beside and sum_.write is not None:
            return False
        self._add(sum_)
        self._segment.post(DONE)
        self._shown.popleft()
        sum_.is_added = True
        if sum_.is_small or sum_.is_looked_at:
            sum_.is_over, sum_.staged = True, None  # others may look at the staged numbers
        else:
            self._added.append(sum_)
        return True

    def _may_add(self, number: int) -> bool:
        segment = self._segment
        return not segment.late(READY, number) and not segment.untold(number) and segment.are_alike(number)

    def _add(self, sum_: Sum) -> None:
        own = sum_.own.view(np.uint8)
        brought = [x.view(sum_.numbers.dtype) for x in self._segment.brought(sum_.number, own)]
        if sum_.is_small and not sum_.is_looked_at and sum_.write is None:
            with np.errstate(all="ignore"):
                add_up(brought, sum_.numbers)
            return
        own_piece = piece(len(sum_.numbers), self._segment.rank, self._segment.size)
        with np.errstate(all="ignore"):
            if sum_.is_looked_at:
                sum_.pieces = [x[own_piece].copy() if sum_.is_small else x[own_piece] for x in brought]
                return
            if sum_.write is not None:
                self._put(sum_, own_piece, brought)
                return
            for here in slices_at_once(own_piece, sum_.numbers.itemsize):
                total = brought[0][here]
                add_up([x[here] for x in brought], total)
                for x in brought[1:]:
                    np.copyto(x[here], total)

    def _put(self, sum_: Sum, own_piece: slice, brought: Sequence[NDArray[Any]]) -> None:
        """Write this worker's piece of all workers' `x`; for small tensors copy all workers' pieces."""
        if not sum_.is_small or len(brought) == 1:
            sum_.written_to([x[own_piece] for x in brought])
            return
        for rank, x in enumerate(brought):
            here = piece(len(x), rank, len(brought))
            sum_.numbers[here] = x[here]

    def _finish(self, sum_: Sum) -> None:
        self._shelf.take_back(sum_)
        sum_.is_over = True


class Beside:
    """A thread for the progress of sums without a wait; it starts with the first, and sleeps while there are none."""

    def __init__(self) -> None:
        self._called = threading.Event()
        self._lock = threading.Lock()
        self._all = set[Sums]()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def look_after(self, sums: Sums) -> None:
        """Let `sums` progress now and then, until none is under way."""
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
                    continue  # a wait for it meets the same
                if is_left:
                    self.look_after(sums)

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        self._called.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
