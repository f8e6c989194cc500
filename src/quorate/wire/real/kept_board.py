"""The board of a run between hosts: every worker keeps a copy, see `wire.replicated`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from quorate.core.contracts import DEFAULT_TIMEOUT, Board
from quorate.core.errors import PeerFailed, QuorateError
from quorate.wire.board import SLICE, not_written
from quorate.wire.failure import FAILED, failure_in, host_of, report_death
from quorate.wire.real.clock_exchange import ANSWERED, ASKED, BETWEEN, ClockExchange
from quorate.wire.real.encryption import Encryption
from quorate.wire.real.lines import Lines
from quorate.wire.replicated.limits import Limits
from quorate.wire.replicated.messages import Hello, read
from quorate.wire.replicated.replica import Replica
from quorate.wire.replicated.state import LEFT, Write

_LAST_NUMBER = 1 << 60
"""Number of the write with which a worker leaves."""
_LAST = 1.0
"""Seconds that a worker stays at most until the others have its entries."""


class _Call:
    """One write or read under way."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.result: Any = None


class KeptBoard(Board):
    """The board of one of `size` workers (or of one that joins them, from that rank on); begins with equal `values`.

    A write returns when a majority of the living workers has it, and a read sees every write that has returned. `peek`
    reads the local copy. All raise `PeerFailed` once this worker is cut off from the majority or taken for dead.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        host: str,
        key: bytes,
        limits: Limits,
        timeout: float,
        clocks: ClockExchange | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        self.limits, self._clocks = limits, clocks
        self._rank, self._size, self._timeout = rank, size, timeout
        self._process = os.getpid()
        self._lines = Lines(
            rank,
            host,
            key,
            every=limits.beat / 2,
            patience=2 * limits.beat,
            received=self._received,
            closed=self._closed,
            step=self._step,
            flush=self._flush,
            encryption=encryption,
        )
        self.address = self._lines.address
        """The address of this worker's copy."""
        self._changed = threading.Condition()
        self._calls = dict[int, _Call]()
        self._next = 0
        self._lock = threading.Lock()
        self._reported, self._silent = set[int](), dict[int, str]()
        self._are_silent = threading.Event()
        self._is_closed, self._is_leaving, self._may_go = threading.Event(), threading.Event(), threading.Event()
        self._replica: Replica

    def begin(self, addresses: Mapping[int, str], values: Mapping[str, bytes]) -> None:
        """Begin with `values`; `addresses` are those of the others' copies."""
        self._replica = Replica(
            self._rank,
            self._size,
            self.limits,
            lambda to, message: self._lines.send(to, message.header()),
            time.monotonic(),
            values=values,
            address=self.address if self._rank >= self._size else None,
            when_applied=self._applied,
            when_read=lambda number: self._answer(number, None),
        )
        self._applied_so_far = 0
        self._looks_at = 0.0
        self._lines.begin(addresses)
        threading.Thread(target=self._watch, name="quorate-silence", daemon=True).start()

    # -- the board

    def set(self, key: str, value: bytes) -> None:
        self._write(do="set", key=key, value=value.decode("latin-1"))

    def get(self, key: str) -> bytes | None:
        self._call(lambda number, done: self._replica.read(number))
        return self._replica.state.values.get(key)

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        self._call(lambda number, done: self._replica.read(number))
        return [self._replica.state.values.get(key) for key in keys]

    def peek(self, key: str) -> bytes | None:
        self.check()
        return self._replica.state.values.get(key)

    def add(self, key: str, amount: int = 1) -> int:
        return int(self._write(do="add", key=key, amount=amount))

    def swap(self, key: str, expected: bytes | None, value: bytes) -> bool:
        before = None if expected is None else expected.decode("latin-1")
        return bool(self._write(do="swap", key=key, expected=before, value=value.decode("latin-1")))

    def delete(self, prefix: str) -> None:
        self._write(do="delete", key=prefix)

    def wait(self, keys: Sequence[str], timeout: float | None = None) -> None:
        limit = DEFAULT_TIMEOUT if timeout is None else timeout
        deadline = time.monotonic() + limit
        while True:
            self.check()
            values = self._replica.state.values
            missing = [key for key in keys if key not in values]
            if not missing:
                return
            if FAILED in values:
                raise failure_in(values[FAILED])
            left = deadline - time.monotonic()
            if left <= 0:
                raise not_written(missing, limit)
            with self._changed:
                self._changed.wait(min(SLICE, left))

    def close(self) -> None:
        """Leave the board: the others go on without this worker, once they have all its entries."""
        if self._is_closed.is_set() or self._process != os.getpid():
            return
        self._is_closed.set()
        self._are_silent.set()
        leave = Write(self._rank, _LAST_NUMBER, 0, LEFT)
        self._lines.do(lambda: None if self._all_leave() else self._replica.propose(leave))
        self._lines.do(self._is_leaving.set)
        self._may_go.wait(_LAST)
        self._lines.close()

    def _is_done(self) -> bool:
        """Whether this worker, which is leaving, may end."""
        office, state = self._replica.office, self._replica.state
        is_free = self._all_leave() or self._rank not in state.voters or self._replica.stopped is not None
        return is_free and (office is None or office.is_known_to_all)

    def _all_leave(self) -> bool:
        state = self._replica.state
        return all(f"left/{peer}" in state.values for peer in state.voters)

    # -- calls

    def _write(self, **write: Any) -> Any:
        return self._call(lambda number, done: self._replica.propose(Write(self._rank, number, done, **write)))

    def _call(self, ask: Callable[[int, int], None]) -> Any:
        self.check()
        call = _Call()
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._calls[number] = call
            done = min(self._calls)
        self._lines.do(lambda: ask(number, done))
        until = time.monotonic() + self._timeout
        try:
            while not call.is_over.wait(SLICE):
                self.check()
                if time.monotonic() > until:
                    raise PeerFailed(f"the board of this run has not answered for {self._timeout:g} s")
        finally:
            self._calls.pop(number, None)
        return call.result

    def check(self) -> None:
        """Raise where this worker is cut off or was taken for dead: the failure of the run, where it is known."""
        if self._replica.stopped is not None:
            written = self._replica.state.values.get(FAILED)
            raise PeerFailed(self._replica.stopped, self._replica.lost) if written is None else failure_in(written)
        if self._process != os.getpid():
            raise PeerFailed("a process that a worker has forked cannot reach the board")

    # -- the thread of the lines

    def _applied(self, write: Write, result: Any) -> None:
        if write.by == self._rank:
            self._answer(write.number, result)

    def _answer(self, number: int, result: Any) -> None:
        call = self._calls.get(number)
        if call is not None:
            call.result = result
            call.is_over.set()

    def _received(self, source: int, header: dict[str, Any]) -> None:
        if header["kind"] in (ASKED, ANSWERED):
            if self._clocks is not None:
                self._clocks.received(source, header, self._lines.send)
            return
        message = read(header)
        if isinstance(message, Hello):
            self._lines.know(source, str(message.address))
        self._replica.received(source, message)

    def _closed(self, peer: int) -> None:
        self._replica.closed.setdefault(peer, self._replica.now)

    def _step(self, now: float) -> None:
        self._replica.passed(now)
        if self._clocks is not None:
            self._clocks.step(self._replica.state.voters, self._lines.send)
        if now >= self._looks_at:
            self._look(now)

    def _look(self, now: float) -> None:
        self._looks_at = now + self.limits.back_within / 4
        office = self._replica.office
        self._silent = {} if office is None else office.silent()
        if self._silent:
            self._are_silent.set()
        self._lines.every = min(self._replica.looks_after, BETWEEN / 2)

    def _flush(self) -> None:
        self._replica.flush()
        if self._is_leaving.is_set() and self._is_done():
            self._may_go.set()
        if self._replica.applied != self._applied_so_far or self._replica.stopped is not None:
            self._applied_so_far = self._replica.applied
            with self._changed:
                self._changed.notify_all()

    # -- the thread that reports deaths

    def _watch(self) -> None:
        while not self._is_closed.is_set():
            self._are_silent.wait()
            self._are_silent.clear()
            for peer, why in self._silent.items():
                if peer not in self._reported and f"left/{peer}" not in self._replica.state.values:
                    with suppress(QuorateError):  # another leads now, or none
                        report_death(self, peer, why, host_of(self, peer))
                        self._reported.add(peer)
