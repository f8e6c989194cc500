"""What all wires of one process share: board, mailbox, clock, and the loop in which everything waits."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from quorate.core.contracts import DEFAULT_TIMEOUT, Board, Message
from quorate.core.errors import ConfigurationError, PeerFailed, QuorateError, WireTimeout, ranks_in_words
from quorate.wire.failure import GONE, ended, gone_in, joined_in, read_failure
from quorate.wire.real.inbox import Inbox
from quorate.wire.real.mailbox import Mailbox
from quorate.wire.real.trust import check_token, is_signed, key_of, machine, sign, signed
from quorate.wire.socket_folder import make_socket_folder

SLICE = 0.05
"""Seconds between two looks at the board while waiting."""
_KEYS = "generation/0"
"""Before the keys of what endpoints say of themselves."""
_REMEMBERED = 12
_LOOK_EVERY = 0.02
_FAREWELL = 5.0
PATIENCE = 1.0
"""Seconds a wait lasts before it asks who has ended, and leaves word of what it waits for."""


def _nothing() -> None:
    """Nothing."""


class WallClock:
    """The wall clock: monotonic seconds."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def pause(self) -> None:
        """Nothing: processes run side by side."""

    def compute(self, share: float) -> None:
        """Nothing: computing takes the time it takes."""


class Endpoint:
    """One process among `size`; made once per process. Waits for all to arrive (at most `timeout`)."""

    def __init__(
        self,
        board: Board,
        rank: int,
        size: int,
        *,
        most: int = 0,
        timeout: float = DEFAULT_TIMEOUT,
        folder: Path | None = None,
        token: str = "",
        find_address: Callable[[], str] = socket.gethostname,
    ) -> None:
        self.board, self.rank, self.size, self.timeout = board, rank, size, timeout
        self.max_size = max(size, most)
        """See `Wire.max_size`."""
        self.clock = WallClock()
        self.others = [peer for peer in range(size) if peer != rank]
        self.host = socket.gethostname()
        self._thread = threading.local()
        self._token, self._find_address, self._key = token, find_address, b""
        self._folder: Path | None = None
        self._addresses: dict[int, str] = {}
        self._lock = threading.Lock()
        self.inbox = Inbox()
        self.mailbox: Mailbox | None = None
        self.is_local = True
        self.address = "127.0.0.1"
        """Where others reach this worker."""
        self.calls = 0
        """Collectives called so far."""
        self.recent: deque[tuple[str, int, str]] = deque(maxlen=_REMEMBERED)
        """The latest of them: channel, number there, operation."""
        self.waits: dict[int, tuple[str, Collection[int], float]] = {}
        """What each thread waits for that has not got it at once: what, which ranks, since when."""
        self.gave_up: tuple[str, Collection[int], float] | None = None
        """The wait that took too long last."""
        self.dead: frozenset[int] = frozenset()
        """See `Wire.dead`."""
        self.joined: frozenset[int] = frozenset()
        """See `Wire.joined`."""
        self.followers: list[str] = []
        """The tags under which it is said that a worker is gone."""
        self._gone_written: bytes | None = None
        self._looked_at = 0.0
        if self.max_size > 1:
            self._open(folder)

    def _open(self, folder: Path | None) -> None:
        board = self.board
        board.set(f"{_KEYS}/host/{self.rank}", self.host.encode())
        if self.rank == 0:
            board.set(f"{_KEYS}/token", secrets.token_hex(32).encode())
        everyone = range(self.size)
        board.wait([f"{_KEYS}/token"], self.timeout)
        token = board.get(f"{_KEYS}/token") or b""
        own = key_of(self._token, token) if self._token else b""
        board.set(f"{_KEYS}/place/{self.rank}", sign(own, "place", self.rank, machine()))
        board.wait([f"{_KEYS}/place/{peer}" for peer in everyone], self.timeout)
        places = [board.get(f"{_KEYS}/place/{peer}") or b"" for peer in everyone]
        self.is_local = {signed(place) for place in places} == {machine()}
        if not self.is_local and self.rank >= self.size:
            raise ConfigurationError("workers join a run on its own host only, and this one spans several")
        if not self.is_local:
            hosts = {peer: (board.get(f"{_KEYS}/host/{peer}") or b"").decode() for peer in everyone}
            try:
                self._key = check_token(self._token, token, self.rank, places, hosts)
            except ConfigurationError:
                self._part_from(everyone)
                raise
            self.address = self._find_address()
        path = None
        if self.is_local:
            if folder is None:
                folder = self._folder = make_socket_folder()
            path = str(folder / f"mail-{self.rank}")
        self.mailbox = Mailbox(self.rank, self.max_size, self.inbox, path, self.address, self._key or token, self._find)
        board.set(f"{_KEYS}/mail/{self.rank}", sign(self._key, "mail", self.rank, self.mailbox.address))

    def _part_from(self, everyone: Collection[int]) -> None:
        """All are refused; the board may go with one of them, so none goes before the others have seen why."""
        self.board.set(f"{_KEYS}/refused/{self.rank}", b"1")
        with suppress(QuorateError):
            self.board.wait([f"{_KEYS}/refused/{peer}" for peer in everyone], _FAREWELL)

    def _find(self, peer: int) -> str:
        with self._lock:
            if peer not in self._addresses:
                key = f"{_KEYS}/mail/{peer}"
                self.board.wait([key], self.timeout)
                written = self.board.get(key) or b""
                if not self.is_local and not is_signed(self._key, "mail", peer, written):
                    raise ConnectionError(f"the address of rank {peer} is not signed with the token of this run")
                self._addresses[peer] = signed(written)
            return self._addresses[peer]

    @property
    def when_stuck(self) -> Callable[[], None]:
        """What this thread does whenever a wait has lasted `PATIENCE`, besides looking for who has ended."""
        found: Callable[[], None] = getattr(self._thread, "when_stuck", _nothing)
        return found

    @when_stuck.setter
    def when_stuck(self, action: Callable[[], None]) -> None:
        self._thread.when_stuck = action

    def until(
        self,
        ready: Callable[[float], bool],
        *,
        waits_for: str,
        needed: Collection[int],
        timeout: float | None,
        also: Collection[int] = (),
        missing: Callable[[], Collection[int]] | None = None,
    ) -> None:
        """Wait until `ready(seconds)`, which itself waits for at most `seconds`, is true.

        `needed` are the ranks without which it cannot come true; `missing` says, at the end, which of them were not
        there. The death of one of `also`, where others outlive it, ends the wait as well. Raises as `Work.wait` does.
        """
        limit = self.timeout if timeout is None else timeout
        begin = time.monotonic()
        if ready(min(SLICE, limit)):
            return
        thread = threading.get_ident()
        self.waits[thread] = (waits_for, needed, begin)
        try:
            while True:
                self.look()
                dead = self.dead.intersection((*needed, *also)) if self.dead else ()
                if dead and not ready(0.0):
                    raise PeerFailed(f"{ranks_in_words(sorted(dead))} died before {waits_for}", sorted(dead))
                waited = time.monotonic() - begin
                if waited > PATIENCE:
                    self.when_stuck()
                    ended_ones = self._ended_among(needed)
                    if ended_ones and not ready(0.0):  # what they sent before may be here meanwhile
                        self.look()  # and they may have ended of what is on the board by now
                        raise PeerFailed(
                            f"{ranks_in_words(ended_ones)} ended while rank {self.rank} waited for "
                            f"{'it' if len(ended_ones) == 1 else 'them'} in {waits_for}",
                            ended_ones,
                        )
                if waited >= limit:
                    self.gave_up = (waits_for, needed, begin)
                    late = sorted(needed if missing is None else missing())
                    raise WireTimeout(
                        f"rank {self.rank} waited {limit:g} s for {ranks_in_words(late)} in {waits_for}", late
                    )
                if ready(min(SLICE, limit - waited)):
                    return
        finally:
            self.waits.pop(thread, None)

    def look(self) -> None:
        """Raise what went wrong elsewhere."""
        failure = read_failure(self.board)
        if failure is not None:
            raise failure
        if self.followers:
            self._look_for_gone()

    def who_is_gone(self) -> frozenset[int]:
        """See `Wire.dead`; raises what went wrong elsewhere. Cost: two words with the board, at most every 20 ms."""
        now = time.monotonic()
        if self.followers and now - self._looked_at > _LOOK_EVERY:
            self._looked_at = now
            self.look()
        return self.dead

    def is_in_vain(self, needed: Collection[int]) -> bool:
        """Whether a wait that needs these would raise by now; asks the board at most every 20 ms."""
        try:
            return not self.who_is_gone().isdisjoint(needed)
        except QuorateError:
            return True

    def _look_for_gone(self) -> None:
        written = self.board.get(GONE)
        if written == self._gone_written:
            return
        with self._lock:
            found = {one.rank for one in gone_in(written)}
            new, self._gone_written = sorted(found - self.dead), written
            self.dead, self.joined = frozenset(found), frozenset(joined_in(written))
        if new:
            for tag in self.followers:
                self.inbox.put(self.rank, tag, Message((), {"gone": new}))

    def connection_lost(self, waits_for: str, detail: str) -> PeerFailed:
        """The error for a broken connection: what the board says of it, as soon as it does."""
        for _ in range(50):
            failure = read_failure(self.board)
            if isinstance(failure, PeerFailed):
                return failure
            if self.followers:
                self._look_for_gone()
                if self.dead:
                    return PeerFailed(f"{ranks_in_words(sorted(self.dead))} died before {waits_for}", sorted(self.dead))
            time.sleep(0.01)
        return PeerFailed(f"rank {self.rank} lost its connection to a worker it needed for {waits_for} ({detail})")

    def _ended_among(self, needed: Collection[int]) -> list[int]:
        lost = self.mailbox.lost if self.mailbox is not None else set[int]()
        keys = {peer: (ended(peer), f"left/{peer}") for peer in needed}
        return [p for p in needed if p in lost or any(self.board.get(key) is not None for key in keys[p])]

    def note(self, key: str, value: object) -> None:
        """Leave word on the board."""
        self.board.set(f"{_KEYS}/{key}", json.dumps(value).encode())

    def noted(self, key: str) -> object | None:
        """The word left under `key`."""
        value = self.board.get(f"{_KEYS}/{key}")
        return None if value is None else json.loads(value)

    def close(self) -> None:
        if self.mailbox is not None:
            self.mailbox.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
