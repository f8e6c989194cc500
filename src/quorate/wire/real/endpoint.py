"""The common part of all wires of one process: board, mailbox, clock, and the loop of all waits."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from quorate.core.contracts import DEFAULT_TIMEOUT, Board, Message
from quorate.core.errors import ConfigurationError, PeerFailed, QuorateError, WireTimeout
from quorate.core.members import DeathNotice, Members
from quorate.wire.boxes import Inbox
from quorate.wire.failure import FAILED, ended, failure_in, read_failure, report_failure
from quorate.wire.members import GONE, members_in
from quorate.wire.naming import named
from quorate.wire.real.clock_exchange import ClockExchange
from quorate.wire.real.encryption import Encryption, check_wishes, wish
from quorate.wire.real.kept_board import KeptBoard
from quorate.wire.real.mailbox import Mailbox, address_for
from quorate.wire.real.shared import is_possible
from quorate.wire.real.trust import check_token, is_signed, key_of, machine, sign, signed
from quorate.wire.real.wall_clock import WallClock
from quorate.wire.replicated.limits import Limits
from quorate.wire.socket_folder import make_socket_folder

SLICE, _LONGEST_LOOK, _MANY = 0.05, 0.5, 16
"""Seconds between two reads of the board in a wait.

For more than `_MANY` workers they are rarer, up to `_LONGEST_LOOK`: the board answers all workers of a host one after
the other.
"""
_KEYS = "generation/0"
"""Prefix of the keys that endpoints write."""
_REMEMBERED = 12
_LOOK_EVERY = 0.02
PATIENCE = 1.0
"""Seconds of a wait before it looks for ended workers, and writes on the board what it waits for."""


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.check: Callable[[], None] = lambda: None


class Endpoint:
    """One process among `size`; made once per process. Waits until all have joined (at most `timeout`)."""

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
        self._slice = min(_LONGEST_LOOK, SLICE * max(1.0, self.max_size / _MANY))
        self.clock = WallClock()
        self.clocks = ClockExchange(rank, self.clock, machine(), lambda peer: self._places.known.get(peer) == machine())
        """Offsets of this worker's clock from others'; not measured where all are on one host."""
        self.records: Path | None = None
        """The folder of the run, where this worker keeps reports."""
        self.others, self.host = [peer for peer in range(size) if peer != rank], socket.gethostname()
        self._thread, self._lock, self._congestion = _OfThread(), threading.Lock(), congestion
        self._token, self._find_address, self._key, self._limits = token, find_address, b"", limits
        self._folder: Path | None = None
        self._addresses: dict[int, str] = {}
        self.inbox = Inbox()
        self.mailbox: Mailbox | None = None
        self.is_local = True
        self._places = Places(lambda: self.board, _KEYS, b"", {})
        self.address = "127.0.0.1"
        """The host at which others reach this worker."""
        self.calls = 0
        """Number of collectives called so far."""
        self.recent: deque[tuple[str, int, str]] = deque(maxlen=_REMEMBERED)
        """The latest collectives: channel, number there, operation."""
        self.waits: dict[int, tuple[str, Collection[int], float]] = {}
        """The wait of each thread that did not end at once: operation, ranks needed, begin."""
        self.gave_up: tuple[str, Collection[int], float] | None = None
        """The last wait that timed out."""
        self.members = Members(size)
        """See `Wire.members`."""
        self.followers: list[str] = []
        """Tags under which deaths are announced."""
        self.gpu: torch.device | None = None
        """The GPU that threads of this worker use: that of its first model."""
        self.has_model = False
        """Whether `gpu` is that of a model; else it was found when this worker joined."""
        self.has_told_of_host = False
        """Whether a line on stderr has said that tensors of GPUs are summed in the memory of the host."""
        self._history: bytes | None = None
        self._looked_at = 0.0
        if self.max_size > 1:
            self._open(folder)

    def _open(self, folder: Path | None) -> None:
        board, rank, size = self.board, self.rank, self.size
        introduced = introduce(
            board, _KEYS, rank, size, self.host, self._token, is_encrypted=self._is_encrypted, timeout=self.timeout
        )
        self._key, self.is_local = introduced.key, introduced.is_local
        self._places = Places(lambda: self.board, _KEYS, self._key, introduced.places)
        if not self.is_local:
            self.address = self._find_address()
        if folder is None:
            folder = self._folder = make_socket_folder()
        path = str(folder / f"mail-{self.rank}") if self.is_local or is_possible() else None
        host = None if self.is_local else self.address
        own_tls = Encryption() if self._is_encrypted and not self.is_local else None
        key = self._key or introduced.token
        self.mailbox = Mailbox(rank, self.max_size, self.inbox, path, host, key, self._find, own_tls, self._refused)
        self.mailbox.congestion = self._congestion
        board.set(f"{_KEYS}/mail/{self.rank}", sign(self._key, "mail", self.rank, self.mailbox.address))
        if not self.is_local:
            kept = KeptBoard(rank, size, self.address, self._key, self._limits, self.timeout, self.clocks, own_tls)
            leave_meeting_place(board, kept, self.rank, self.size, self._key, self.timeout, prefix=_KEYS)
            self.board = kept
            for name in (f"{_KEYS}/{kind}/{self.rank}" for kind in ("host", "place", "mail") if self.rank >= self.size):
                self.board.set(name, board.get(name) or b"")  # the others began without it

    def use_gpu(self, gpu: torch.device) -> None:
        """Let threads of this worker use the GPU of its model, also those that have another current one."""
        self.gpu = gpu
        if self.mailbox is not None:
            self.mailbox.use_gpu(gpu)

    def host_of(self, rank: int) -> int:
        """Return `Wire.host_of`; a worker whose place is unknown is on a host of its own."""
        return 0 if self.is_local else self._places.host_of(rank)

    def shares_memory(self) -> bool:
        """Whether all workers of the start can share memory with those on their host."""
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

    @contextmanager
    def checking(self, check: Callable[[], None]) -> Iterator[None]:
        """Inside, waits of this thread that last `PATIENCE` call `check`, and look for ended workers."""
        before, self._thread.check = self._thread.check, check
        try:
            yield
        finally:
            self._thread.check = before

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

        `needed` are the ranks without which it cannot become true; `missing` returns, at the end, those that are
        missing. The death of one of `also`, where others outlive it, ends the wait as well. Raises as `Work.wait`.
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
                dead = self.members.dead.intersection((*needed, *also)) if self.members.dead else ()
                if dead and not ready(0.0):
                    raise PeerFailed(f"{named(self.board, sorted(dead))} died before {waits_for}", sorted(dead))
                waited = time.monotonic() - begin
                if begin + waited > looks_at:
                    looks_at = begin + waited + self._slice
                    self._thread.check()
                    ended_ones = self._ended_among(needed)
                    if ended_ones and not ready(0.0):  # their messages may have arrived meanwhile
                        self.look()  # the board may have the reason by now
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
                if ready(min(self._slice, limit - waited)):
                    return
        finally:
            self.waits.pop(thread, None)

    @property
    def named(self) -> str:
        """The name of this worker in sentences."""
        return named(self.board, [self.rank])

    def check(self) -> None:
        """Raise where this worker may not go on, even with its message there. Costs next to nothing."""
        if isinstance(self.board, KeptBoard):
            self.board.check()

    def look(self) -> None:
        """Raise the first failure of the run, if there is one."""
        if not self.followers:
            if (failure := read_failure(self.board)) is not None:
                raise failure
            return
        failed, departures = self.board.peek_all([FAILED, GONE])
        if failed is not None:
            raise failure_in(failed)
        self._learn_members(departures)

    def members_now(self) -> Members:
        """Return `Wire.members`; raises the first failure. Cost: two reads of the board, at most every 20 ms."""
        now = time.monotonic()
        if self.followers and now - self._looked_at > _LOOK_EVERY:
            self._looked_at = now
            self.look()
        return self.members

    def is_in_vain(self, needed: Collection[int]) -> bool:
        """Whether a wait that needs these workers would raise now; reads the board at most every 20 ms."""
        if not self.followers or time.monotonic() - self._looked_at <= _LOOK_EVERY:
            return not self.members.dead.isdisjoint(needed)
        try:
            return not self.members_now().dead.isdisjoint(needed)
        except QuorateError:
            return True

    def _learn_members(self, written: bytes | None) -> None:
        if written == self._history:
            return
        with self._lock:
            before, self.members, self._history = self.members, members_in(written, self.size), written
            new_deaths = sorted(self.members.dead - before.dead)
        for tag in self.followers if new_deaths else ():
            self.inbox.put(self.rank, tag, Message(header=DeathNotice(new_deaths).header()))

    def connection_lost(self, waits_for: str, detail: str) -> QuorateError:
        """Return the error for a broken connection: the failure on the board, waiting until it is there."""
        for _ in range(50 if self.is_local else int(100 * (self._limits.silence + 1.0))):
            failure = read_failure(self.board)
            if failure is not None:
                return failure
            if self.followers:
                self._learn_members(self.board.peek(GONE))
                if dead := sorted(self.members.dead):
                    return PeerFailed(f"{named(self.board, dead)} died before {waits_for}", dead)
            time.sleep(0.01)
        return PeerFailed(f"{self.named} lost its connection to a worker it needed for {waits_for} ({detail})")

    def _refused(self, peer: int, why: str) -> None:
        """Report that another process answered at the address of `peer`: unless `peer` is dead, it ends the run."""
        error = self.connection_lost("a connection", why)
        if isinstance(error, PeerFailed) and peer not in error.ranks:
            report_failure(self.board, self.rank, why)

    def _ended_among(self, needed: Collection[int]) -> list[int]:
        lost = self.mailbox.lost if self.mailbox is not None and self.is_local else set[int]()  # else the board has it
        if not needed:
            return []
        notes = self.board.peek_all([*map(ended, needed), *(f"left/{peer}" for peer in needed)])
        ended_ranks = {peer for peer, written in zip([*needed, *needed], notes, strict=True) if written is not None}
        return [peer for peer in needed if peer in lost or peer in ended_ranks]

    def note(self, key: str, value: object) -> None:
        """Write `value` on the board."""
        self.board.set(f"{_KEYS}/{key}", json.dumps(value).encode())

    def noted(self, keys: Sequence[str]) -> list[object | None]:
        """Return the value noted under each of `keys`."""
        values = self.board.get_all([f"{_KEYS}/{key}" for key in keys])
        return [None if value is None else json.loads(value) for value in values]

    def leave_board(self) -> None:
        """Between hosts, stay until the others have the entries of this copy, for a second at most."""
        if isinstance(self.board, KeptBoard):
            self.board.close()

    def close(self) -> None:
        if self.mailbox is not None:
            self.mailbox.close()
        self.leave_board()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True)
class Introduced:
    """The result of an introduction on one worker."""

    token: bytes
    """The run's token, drawn by rank 0."""
    key: bytes
    """The key for signatures between hosts; empty on one host."""
    places: dict[int, str]
    """The machine of each rank."""
    is_local: bool
    """Whether all workers are on this machine."""


def introduce(
    board: Board, prefix: str, rank: int, size: int, host: str, secret: str, *, is_encrypted: bool, timeout: float
) -> Introduced:
    """Write the place and the wish of this worker, and wait for those of the others; `secret` is the common token.

    Raises `ConfigurationError`, on all workers, where they are on several machines and do not match.
    """
    board.set(f"{prefix}/host/{rank}", host.encode())
    board.set(f"{prefix}/wish/{rank}", wish(is_encrypted=is_encrypted))
    if rank == 0:
        board.set(f"{prefix}/token", secrets.token_hex(32).encode())
    everyone = range(size)
    board.wait([f"{prefix}/token"], timeout)
    token = board.get(f"{prefix}/token") or b""
    nonce = token + b" tls" if is_encrypted else token  # signatures without TLS are invalid with it
    board.set(f"{prefix}/place/{rank}", sign(key_of(secret, nonce) if secret else b"", "place", rank, machine()))
    board.wait([f"{prefix}/place/{peer}" for peer in everyone], timeout)
    written = [board.get(f"{prefix}/place/{peer}") or b"" for peer in everyone]
    places = {peer: signed(place) for peer, place in zip(everyone, written, strict=True)}
    if are_here(places, joins=rank >= size):
        return Introduced(token, b"", places, is_local=True)
    hosts = {peer: (board.get(f"{prefix}/host/{peer}") or b"").decode() for peer in everyone}
    wishes = {peer: board.get(f"{prefix}/wish/{peer}") or b"" for peer in {*everyone, rank}}
    try:
        check_wishes(wishes, hosts | {rank: host})
        key = check_token(secret, nonce, rank, written, hosts)
    except ConfigurationError:
        part_from(board, prefix, rank, everyone)
        raise
    return Introduced(token, key, places, is_local=False)


def leave_meeting_place(
    board: Board, kept: KeptBoard, rank: int, size: int, key: bytes, timeout: float, *, prefix: str
) -> None:
    """Move all `size` workers, and one that joins them, to `kept`; `board`, where they met, may end then.

    Their notes there below `prefix` about hosts and addresses are on it from the start.
    """
    board.set(f"{prefix}/copy/{rank}", sign(key, "copy", rank, kept.address))
    wanted = [f"{prefix}/{kind}/{peer}" for kind in ("copy", "mail") for peer in range(size)]
    board.wait(wanted, timeout)
    notes = {name: board.get(name) or b"" for name in _all_keys(prefix, size)}
    addresses = {}
    for peer in range(size):
        written = notes[f"{prefix}/copy/{peer}"]
        if not is_signed(key, "copy", peer, written):
            raise ConfigurationError(f"the address of rank {peer} is not signed with the token of this run")
        addresses[peer] = signed(written)
    kept.begin({peer: address for peer, address in addresses.items() if peer != rank}, notes)


def _all_keys(prefix: str, size: int) -> Iterable[str]:
    return [f"{prefix}/{kind}/{peer}" for kind in ("host", "place", "mail", "copy", "wish") for peer in range(size)]


_FAREWELL = 30.0


class Places:
    """The machines of all workers: those `known`, and of newcomers once they are on the board."""

    def __init__(self, board: Callable[[], Board], prefix: str, key: bytes, known: dict[int, str]) -> None:
        self._board, self._prefix, self._key, self.known = board, prefix, key, known
        """`known`: the machines by rank."""
        self._hosts: dict[int, int] = {}
        """Hosts by rank, as far as later machines cannot change them."""

    def host_of(self, rank: int) -> int:
        """Return the lowest rank on the host of `rank`; `rank` itself where its place is unknown."""
        if rank in self._hosts:
            return self._hosts[rank]
        place = self._place_of(rank)
        if place is None:
            return rank
        lowest = next(other for other in range(rank + 1) if self._place_of(other) == place)
        if all(other in self.known for other in range(lowest)):
            self._hosts[rank] = lowest
        return lowest

    def _place_of(self, rank: int) -> str | None:
        if rank not in self.known:
            written = self._board().get(f"{self._prefix}/place/{rank}") or b""
            if not is_signed(self._key, "place", rank, written):
                return None
            self.known[rank] = signed(written)
        return self.known[rank]


def are_here(places: Mapping[int, str], *, joins: bool) -> bool:
    """Whether all workers are on this machine. Raises `ConfigurationError` for one that `joins` those of another."""
    machines = set(places.values())
    if joins and len(machines) == 1 and machines != {machine()}:
        raise ConfigurationError("a run on one host is joined by workers on that host only")
    return machines == {machine()}


def part_from(board: Board, prefix: str, rank: int, everyone: Collection[int]) -> None:
    """Wait until all workers, which are refused, know the reason: the board may end with one of them."""
    with suppress(QuorateError):
        board.set(f"{prefix}/refused/{rank}", b"1")
        board.wait([f"{prefix}/refused/{peer}" for peer in everyone], _FAREWELL)
