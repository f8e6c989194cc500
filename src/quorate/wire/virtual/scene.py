"""The interface of a run for the parts of a virtual world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quorate.core.errors import Failure, PeerFailed
from quorate.core.members import Members
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.ports import Traffic
from quorate.wire.virtual.queues import Queues
from quorate.wire.virtual.scheduler import Scheduler


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
    traffic: Traffic
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
