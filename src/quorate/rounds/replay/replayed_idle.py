"""What the rounds of a worker have nothing to do for in a replay."""

from __future__ import annotations

from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.rounds.arrival import OtherRounds
from quorate.rounds.buffer import Kept


class IdleInReplays:
    """The part of `rounds.Rounds` that is idle."""

    def goes_away(self) -> None:
        """Nobody waits for anybody."""

    def waits(self) -> None:
        """Likewise."""

    def goes_on(self) -> None:
        """Likewise."""

    def give_copies(self) -> None:
        """Nobody wants one."""

    some_joined = False

    def run_beside(self, others: OtherRounds) -> None:
        """No worker waits for the steps of another one."""

    def close(self) -> None:
        """There is no task beside the training thread."""

    def agree(self, *, why: str = "", **settings: Any) -> None:
        """What was agreed on is recorded."""

    def ask_for_save(self, request: int) -> None:
        """A replay keeps no checkpoints."""

    def keep(self) -> Kept:
        """Raises `ConfigurationError`."""
        raise ConfigurationError("a replay writes no checkpoints")

    def restore(self, kept: Kept) -> None:
        """Raises `ConfigurationError`."""
        raise ConfigurationError("a replay begins at the first step and cannot load a checkpoint")
