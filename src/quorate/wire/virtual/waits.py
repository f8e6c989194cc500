"""Works under way in the virtual world, waits for them, and the interface of a run for its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from quorate.core.errors import Failure, PeerFailed, WireTimeout, ranks_in_words
from quorate.core.members import Members
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.ports import Queues
from quorate.wire.virtual.scheduler import Scheduler, Strand

T = TypeVar("T")

RANKS_NAMED = 16
"""Largest number of ranks named in a sentence."""


class VirtualWork(Generic[T]):
    """A work that worker `rank` started, or waits for; `finish` and `fail` end it, once."""

    __slots__ = ("_error", "_result", "_scene", "_waiting", "is_finished", "operation", "rank", "timeout")

    def __init__(self, scene: Scene, rank: int, operation: str, timeout: float) -> None:
        self.rank = rank
        self.operation = operation
        self.timeout = timeout
        self.is_finished = False
        self._scene = scene
        self._waiting: list[Strand] = []
        self._result: T
        self._error: BaseException | None = None

    # -- the contract of Work

    def done(self) -> bool:
        return self.is_finished or self._scene.obstacle(self) is not None

    def wait(self, timeout: float | None = None) -> T:
        if not self.is_finished:
            self._await(timeout)
        if self._error is not None:
            raise self._error
        return self._result

    # -- called with the result

    def finish(self, result: T) -> None:
        """End the work with `result`, which waits return."""
        self._result = result
        self._end()

    def fail(self, error: BaseException) -> None:
        """End the work with `error`, which waits raise."""
        self._error = error
        self._end()

    def missing(self) -> Sequence[int]:
        return ()

    def can_come_from(self, rank: int) -> bool:
        return False

    # -- for errors

    def timed_out(self, seconds: float) -> WireTimeout:
        return WireTimeout(f"rank {self.rank} waited {seconds:g} s {self._for_what()}", self.missing())

    def ended(self, ranks: Sequence[int]) -> PeerFailed:
        them = "it" if len(ranks) == 1 else "them"
        message = f"{in_words(ranks)} ended while rank {self.rank} waited for {them} in {self.operation}"
        return PeerFailed(message, ranks)

    def _for_what(self) -> str:
        missing = self.missing()
        return f"for {in_words(missing)} in {self.operation}" if missing else f"in {self.operation}"

    # -- inside

    def _end(self) -> None:
        self.is_finished = True
        for strand in self._waiting:
            self._scene.scheduler.wake(strand)
        self._waiting.clear()

    def _await(self, timeout: float | None) -> None:
        scheduler = self._scene.scheduler
        scheduler.catch_up()
        if self.is_finished:
            return
        obstacle = self._scene.obstacle(self)
        if obstacle is not None:
            raise obstacle
        strand = scheduler.running()
        self._waiting.append(strand)
        try:
            scheduler.wait(self, self.timeout if timeout is None else timeout, is_patient=timeout is None)
        finally:
            if strand in self._waiting:
                self._waiting.remove(strand)


class Departure:
    """A sent message: done at the virtual time `at`, when its last byte is on the link."""

    __slots__ = ("_at", "_scene", "_target")

    def __init__(self, scene: Scene, at: float, target: int) -> None:
        self._scene = scene
        self._at = at
        self._target = target

    def done(self) -> bool:
        return self._scene.scheduler.now >= self._at

    def wait(self, timeout: float | None = None) -> None:
        scheduler = self._scene.scheduler
        remaining = self._at - scheduler.now
        if timeout is not None and remaining > timeout:
            scheduler.sleep(timeout)
            raise WireTimeout(f"a send to rank {self._target} was not on its way after {timeout:g} s", (self._target,))
        if remaining > 0:
            scheduler.sleep(remaining)


def in_words(ranks: Sequence[int]) -> str:
    """Return ranks in words, only the first ones where they are many."""
    if len(ranks) <= RANKS_NAMED:
        return ranks_in_words(ranks)
    first = sorted(ranks)[:RANKS_NAMED]
    return f"ranks {', '.join(map(str, first))} and {len(ranks) - RANKS_NAMED} more"


class Awaited(Protocol):
    """A work that a worker waits for."""

    def missing(self) -> Sequence[int]:
        """Return the workers that this waits for, as far as known."""

    def can_come_from(self, rank: int) -> bool:
        """Whether the message of `rank`, which has ended, is still on its way."""

    def ended(self, ranks: Sequence[int]) -> PeerFailed:
        """Return the error for a wait for workers that have ended."""


class Scene(Protocol):
    """One run: its clock, its network, and its dead workers. `Stage` implements it."""

    size: int
    network: Network
    timeout: float
    is_traced: bool
    scheduler: Scheduler
    queues: Queues
    members: Members
    """The workers as the board has them."""

    def note(self, rank: int | None, event: str) -> None:
        """Write a line of the trace."""

    def obstacle(self, pending: Awaited) -> Failure | None:
        """Return the error that a wait for the unfinished `pending` would raise at once."""

    def learn_of_failure(self, value: bytes | None) -> None:
        """Let all workers notice a new value of the key `failed`."""

    def learn_members(self, value: bytes) -> None:
        """Let all workers notice a new value of the key `gone`."""
