"""One run of a virtual world: the lives of its workers, and their shared state."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from quorate.core.contracts import Message
from quorate.core.draws import common_seed, mixed
from quorate.core.errors import ConfigurationError, Failure, PeerFailed, QuorateError
from quorate.core.members import Members
from quorate.wire import current, failure
from quorate.wire.members import members_in
from quorate.wire.virtual.board import VirtualBoard
from quorate.wire.virtual.generators import Generators
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.ports import Queues
from quorate.wire.virtual.post import Address, Post
from quorate.wire.virtual.rendezvous import Rendezvous
from quorate.wire.virtual.scheduler import Resumed, Scheduler, Strand
from quorate.wire.virtual.waits import Awaited, VirtualWork

HOST = "virtual"
"""The host name of all virtual workers."""

NOTICE_SECONDS = 0.05
"""Seconds from a worker's death until the launcher has written it on the board."""

GRACE_SECONDS = 1.0
"""Seconds from a worker's normal end until waits that need it fail."""


class Unwound(BaseException):
    """Ends a virtual worker's thread: it crashed, or its task has ended. User code never handles it."""


@dataclass
class Life:
    """One virtual worker, from its birth to its end."""

    rank: int
    strands: list[Strand] = field(default_factory=list)
    result: Any = None
    error: BaseException | None = None
    is_crashed: bool = False
    is_over: bool = False
    seconds: float = 0.0
    """The virtual time at which it ended."""


MAIN = "main"
"""The name of the thread in which a worker begins."""


class Stage:
    """The shared state of one run, through which its parts reach each other."""

    def __init__(
        self,
        size: int,
        most: int,
        *,
        seed: int,
        network: Network,
        timeout: float,
        has_generators: bool,
        is_traced: bool,
        resumed: Resumed,
    ) -> None:
        self.size = size
        self.seed = seed
        self.network = network
        self.timeout = timeout
        self.is_traced = is_traced
        self.trace: list[str] = []
        self.scheduler = Scheduler(mixed(seed))
        self.queues = Queues(network)
        self.board = VirtualBoard(self)
        self.post = Post(self)
        self.rendezvous = Rendezvous(self)
        self.lives = [Life(rank) for rank in range(most)]
        self.failures: list[Life] = []
        """Workers that raised or crashed, in the order of virtual time."""
        self.ended: set[int] = set()
        """Workers that ended normally, more than `GRACE_SECONDS` ago."""
        self.members = Members(size)
        """The workers as the board has them."""
        self.followers: list[Address] = []
        """Addresses that get a message about each death."""
        self._failure: bytes | None = None
        self._has_generators, self._resumed = has_generators, resumed

    def note(self, rank: int | None, event: str) -> None:
        who = "-" if rank is None else str(rank)
        self.trace.append(f"{self.scheduler.now:.9f} {who} {event}")

    # -- why a wait cannot be

    def obstacle(self, pending: Awaited) -> Failure | None:
        if self._failure is not None:
            return failure.failure_in(self._failure)
        away = self.ended | self.members.dead if self.members.dead else self.ended
        if away:
            ranks = [rank for rank in pending.missing() if rank in away and not pending.can_come_from(rank)]
            if ranks:
                return pending.ended(ranks)
        return None

    def learn_of_failure(self, value: bytes | None) -> None:
        self._failure = value
        self._stop_waits()

    def learn_members(self, value: bytes) -> None:
        before, self.members = self.members, members_in(value, self.size)
        new_deaths = sorted(self.members.dead - before.dead)
        for address in self.followers if new_deaths else ():
            if not self.lives[address[1]].is_over:
                self.post.tell(address, Message((), {"gone": new_deaths}))
        self._stop_waits()

    def _stop_waits(self) -> None:
        for strand in list(self.scheduler.strands):
            if strand.waits and isinstance(strand.awaited, VirtualWork):
                obstacle = self.obstacle(strand.awaited)
                if obstacle is not None:
                    self.scheduler.wake(strand, obstacle)

    # -- lives

    def start(self, rank: int, name: str, body: Callable[[], None]) -> None:
        """Start a thread of worker `rank`, which runs `body` once it gets the baton."""
        life = self.lives[rank]
        common, own = self._seeds(rank, name)
        seed = common if name == MAIN else own
        strand = Strand(rank, name, Generators(seed) if self._has_generators else None, self._resumed)
        thread = threading.Thread(target=self._live, args=(strand, body), name=f"rank {rank} {name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            message = f"the system refused a thread for rank {rank} of {self.size}; raise its limit or lower the size"
            raise ConfigurationError(message) from None
        life.strands.append(strand)
        self.scheduler.add(strand)

    def generator_seeds(self, rank: int) -> tuple[int, int] | None:
        """Return the seed of all workers' generators, and one of this worker's own; None without generators."""
        return self._seeds(rank, MAIN) if self._has_generators else None

    def _seeds(self, rank: int, name: str) -> tuple[int, int]:
        thread = zlib.crc32(name.encode())
        return common_seed(self.seed, thread), mixed(self.seed, rank, thread)

    def _live(self, strand: Strand, body: Callable[[], None]) -> None:
        strand.lock.acquire()
        strand.ident = threading.get_ident()
        torch.autograd.set_multithreading_enabled(False)  # hooks of a GPU's backward pass run in this thread
        strand.resume()
        try:
            if strand.fate is None:
                body()
        finally:
            self.lives[strand.rank].strands.remove(strand)
            self.scheduler.leave()

    def play(self, rank: int, task: Callable[[], Any]) -> None:
        """Run the task of worker `rank`, and announce its end."""
        life = self.lives[rank]
        try:
            life.result = task()
        except Unwound:
            pass
        except BaseException as error:  # any error ends it, as it would end a process
            life.error = error
            self._die(life, f"raised {_in_words(error)}")
        else:
            self._end(life)

    def spawn(self, rank: int, name: str, task: Callable[[], None]) -> VirtualWork[None]:
        """Start a further thread of worker `rank`; a wait for it raises its error."""
        pending = VirtualWork[None](self, rank, f"spawn of {name}", self.timeout)
        place = current.place()

        def body() -> None:
            current.adopt(place)
            try:
                task()
            except Unwound:
                pass
            except BaseException as error:  # the wait raises it
                self.note(rank, f"{name} raised {_in_words(error)}") if self.is_traced else None
                pending.fail(error)
            else:
                pending.finish(None)

        self.start(rank, name, body)
        return pending

    def crash(self, rank: int) -> None:
        """End worker `rank`, which calls it, as by a crash."""
        life = self.lives[rank]
        life.is_crashed = True
        life.error = PeerFailed(f"rank {rank} crashed", (rank,))
        self._die(life, "crashed")
        raise Unwound

    def _die(self, life: Life, reason: str) -> None:
        self.failures.append(life)
        self._close(life, reason)
        scheduler = self.scheduler
        scheduler.at(scheduler.now + NOTICE_SECONDS, partial(self._announce, life.rank, reason))

    def _announce(self, rank: int, reason: str) -> None:
        if not failure.has_come(self.board, self.size, rank):
            failure.report_outsider(self.board, rank, reason, host=HOST)
        elif self.lives[rank].is_crashed:
            failure.report_death(self.board, rank, reason, host=HOST)
        elif isinstance(self.lives[rank].error, QuorateError) or not failure.report_outlived_error(
            self.board, rank, reason, host=HOST
        ):
            failure.report_failure(self.board, rank, reason, host=HOST)

    def _end(self, life: Life) -> None:
        self._close(life, "ended")
        self.board.set(failure.ended(life.rank), b"0")
        self.scheduler.at(self.scheduler.now + GRACE_SECONDS, partial(self._miss, life.rank))

    def _miss(self, rank: int) -> None:
        self.ended.add(rank)
        self._stop_waits()

    def _close(self, life: Life, how: str) -> None:
        life.is_over = True
        life.seconds = self.scheduler.now
        if self.is_traced:
            self.note(life.rank, how)
        for strand in life.strands:
            if strand is not self.scheduler.current:
                self.scheduler.doom(strand, Unwound())


def _in_words(error: BaseException) -> str:
    first_line, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
