"""What all wires of one process share: board, mailbox, clock, and the loop in which everything waits."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from quorate.core.contracts import DEFAULT_TIMEOUT, Board, Message
from quorate.core.errors import PeerFailed, QuorateError, WireTimeout
from quorate.wire.failure import GONE, ended, gone_in, joined_in, read_failure, report_failure
from quorate.wire.naming import named
from quorate.wire.real.clock_exchange import ClockExchange
from quorate.wire.real.encryption import Encryption
from quorate.wire.real.inbox import Inbox
from quorate.wire.real.introduction import introduce
from quorate.wire.real.kept_board import KeptBoard
from quorate.wire.real.mailbox import Mailbox, address_for
from quorate.wire.real.places import Places
from quorate.wire.real.several_hosts import leave_meeting_place
from quorate.wire.real.shared import is_possible
from quorate.wire.real.trust import is_signed, machine, sign, signed
from quorate.wire.real.wall_clock import WallClock
from quorate.wire.replicated.limits import Limits
from quorate.wire.socket_folder import make_socket_folder

SLICE, _LONGEST_LOOK, _MANY = 0.05, 0.5, 16
"""Seconds between two looks at the board while waiting; those at what many others say are rarer, up to so long."""
_KEYS = "generation/0"
"""Before the keys of what endpoints say of themselves."""
_REMEMBERED = 12
_LOOK_EVERY = 0.02
PATIENCE = 1.0
"""Seconds a wait lasts before it asks who has ended, and leaves word of what it waits for."""


def _nothing() -> None:
    """Nothing."""


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
        limits: Limits = Limits(),  # noqa: B008 - it cannot be changed
        is_encrypted: bool = False,
        congestion: str = "",
    ) -> None:
        self.board, self.rank, self.size, self.timeout, self._is_encrypted = board, rank, size, timeout, is_encrypted
        self.max_size = max(size, most)
        """See `Wire.max_size`."""
        self.clock = WallClock()
        self.clocks = ClockExchange(rank, self.clock, machine(), lambda peer: self._places.known.get(peer) == machine())
        """How far this worker's clock is from others'; where all are on one host it is not asked."""
        self.others, self.host = [peer for peer in range(size) if peer != rank], socket.gethostname()
        self._thread, self._lock, self._congestion = threading.local(), threading.Lock(), congestion
        self._token, self._find_address, self._key, self._limits = token, find_address, b"", limits
        self._folder: Path | None = None
        self._addresses: dict[int, str] = {}
        self.inbox = Inbox()
        self.mailbox: Mailbox | None = None
        self.is_local = True
        self._places = Places(lambda: self.board, _KEYS, b"", {})
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
        board, rank, size = self.board, self.rank, self.size
        known = introduce(
            board, _KEYS, rank, size, self.host, self._token, is_encrypted=self._is_encrypted, timeout=self.timeout
        )
        self._key, self.is_local = known.key, known.is_local
        self._places = Places(lambda: self.board, _KEYS, self._key, known.places)
        if not self.is_local:
            self.address = self._find_address()
        if folder is None:
            folder = self._folder = make_socket_folder()
        path = str(folder / f"mail-{self.rank}") if self.is_local or is_possible() else None
        host = None if self.is_local else self.address
        own_tls = Encryption() if self._is_encrypted and not self.is_local else None
        self.mailbox = Mailbox(
            rank, self.max_size, self.inbox, path, host, self._key or known.token, self._find, own_tls, self._refused
        )
        self.mailbox.congestion = self._congestion
        board.set(f"{_KEYS}/mail/{self.rank}", sign(self._key, "mail", self.rank, self.mailbox.address))
        if not self.is_local:
            kept = KeptBoard(rank, size, self.address, self._key, self._limits, self.timeout, self.clocks, own_tls)
            leave_meeting_place(board, kept, self.rank, self.size, self._key, self.timeout, prefix=_KEYS)
            self.board = kept
            for key in (f"{_KEYS}/{what}/{self.rank}" for what in ("host", "place", "mail") if self.rank >= self.size):
                self.board.set(key, board.get(key) or b"")  # the others have met without it

    def host_of(self, rank: int) -> int:
        """See `Wire.host_of`; one whose place is not known is on a host of its own."""
        return 0 if self.is_local else self._places.host_of(rank)

    def shares_memory(self) -> bool:
        """Whether all that were there at the start can share memory with those on their host."""
        if self.is_local:
            return is_possible()
        mail = [self.board.get(f"{_KEYS}/mail/{peer}") or b"" for peer in range(self.size)]
        return all(b"unix:" in address for address in mail)

    def _find(self, peer: int) -> str:
        with self._lock:
            if peer not in self._addresses:
                key = f"{_KEYS}/mail/{peer}"
                self.board.wait([key], self.timeout)
                written = self.board.get(key) or b""
                if not self.is_local and not is_signed(self._key, "mail", peer, written):
                    raise ConnectionError(f"the address of rank {peer} is not signed with the token of this run")
                is_here = self.is_local or self.host_of(peer) == self.host_of(self.rank)
                self._addresses[peer] = address_for(signed(written), is_here=is_here)
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
        self.check()
        limit = self.timeout if timeout is None else timeout
        begin = time.monotonic()
        if ready(min(SLICE, limit)):
            return
        thread, looks_at = threading.get_ident(), begin + PATIENCE
        self.waits[thread] = (waits_for, needed, begin)
        try:
            while True:
                self.look()
                dead = self.dead.intersection((*needed, *also)) if self.dead else ()
                if dead and not ready(0.0):
                    raise PeerFailed(f"{named(self.board, sorted(dead))} died before {waits_for}", sorted(dead))
                waited = time.monotonic() - begin
                if begin + waited > looks_at:
                    looks_at = begin + waited + min(_LONGEST_LOOK, SLICE * max(1.0, len(needed) / _MANY))
                    self.when_stuck()
                    ended_ones = self._ended_among(needed)
                    if ended_ones and not ready(0.0):  # what they sent before may be here meanwhile
                        self.look()  # and they may have ended of what is on the board by now
                        raise PeerFailed(
                            f"{named(self.board, ended_ones)} ended while {self.named} waited for "
                            f"{'it' if len(ended_ones) == 1 else 'them'} in {waits_for}",
                            ended_ones,
                        )
                if waited >= limit:
                    self.gave_up = (waits_for, needed, begin)
                    late = sorted(needed if missing is None else missing())
                    who = named(self.board, late)
                    raise WireTimeout(f"{self.named} waited {limit:g} s for {who} in {waits_for}", late)
                if ready(min(SLICE, limit - waited)):
                    return
        finally:
            self.waits.pop(thread, None)

    @property
    def named(self) -> str:
        """This worker, in a sentence."""
        return named(self.board, [self.rank])

    def check(self) -> None:
        """Raise where this worker may not go on, whatever is there for it. Costs next to nothing."""
        if isinstance(self.board, KeptBoard):
            self.board.check()

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
        written = self.board.peek(GONE)
        if written == self._gone_written:
            return
        with self._lock:
            found = {one.rank for one in gone_in(written)}
            new, self._gone_written = sorted(found - self.dead), written
            self.dead, self.joined = frozenset(found), frozenset(joined_in(written))
        if new:
            for tag in self.followers:
                self.inbox.put(self.rank, tag, Message((), {"gone": new}))

    def connection_lost(self, waits_for: str, detail: str) -> QuorateError:
        """The error for a broken connection: what the board says of it, as soon as it does."""
        for _ in range(50 if self.is_local else int(100 * (self._limits.silence + 1.0))):
            failure = read_failure(self.board)
            if failure is not None:
                return failure
            if self.followers:
                self._look_for_gone()
                if self.dead:
                    return PeerFailed(
                        f"{named(self.board, sorted(self.dead))} died before {waits_for}", sorted(self.dead)
                    )
            time.sleep(0.01)
        return PeerFailed(f"{self.named} lost its connection to a worker it needed for {waits_for} ({detail})")

    def _refused(self, peer: int, why: str) -> None:
        """Somebody else answered at the address of `peer`; unless that one is dead, nobody goes on."""
        found = self.connection_lost("a connection", why)
        if isinstance(found, PeerFailed) and peer not in found.ranks:
            report_failure(self.board, self.rank, why)

    def _ended_among(self, needed: Collection[int]) -> list[int]:
        lost = self.mailbox.lost if self.mailbox is not None and self.is_local else set[int]()  # else the board says it
        found = self.board.get_all([*map(ended, needed), *(f"left/{peer}" for peer in needed)])
        gone = {peer for peer, written in zip([*needed, *needed], found, strict=True) if written is not None}
        return [peer for peer in needed if peer in lost or peer in gone]

    def note(self, key: str, value: object) -> None:
        """Leave word on the board."""
        self.board.set(f"{_KEYS}/{key}", json.dumps(value).encode())

    def noted(self, keys: Sequence[str]) -> list[object | None]:
        """The word left under each of `keys`."""
        found = self.board.get_all([f"{_KEYS}/{key}" for key in keys])
        return [None if value is None else json.loads(value) for value in found]

    def leave_board(self) -> None:
        """Between hosts: stay until the others have what is written here, for a second at most."""
        if isinstance(self.board, KeptBoard):
            self.board.close()

    def close(self) -> None:
        if self.mailbox is not None:
            self.mailbox.close()
        self.leave_board()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
