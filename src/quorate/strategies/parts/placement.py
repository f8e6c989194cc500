"""Settings of a strategy that keeps parameters on servers: on which, and whether one may die."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from quorate.core.errors import ConfigurationError
from quorate.core.servers import ReplicatedParts
from quorate.core.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class PlacedOnServers(ReplicatedParts, Strategy):
    """On which servers, and on how many of them each part lies."""

    may_be_own: ClassVar[bool] = False
    """Whether servers may be ranks that train nothing."""

    servers: int | Literal["all", "own"] = "all"
    """On how many workers it lies, from rank 0 on; each trains as well."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known: tuple[str, ...] = ("all", "own") if self.may_be_own else ("all",)
        if self.servers not in known and not (isinstance(self.servers, int) and self.servers >= 1):
            words = "".join(f'"{name}", ' for name in known)
            raise ConfigurationError(f"servers is {self.servers!r}; it must be {words}or a whole number (at least 1)")
        if self.replication < 1:
            raise ConfigurationError(f"replication is {self.replication!r}; it must be a whole number (at least 1)")
        if self.replication > 1 and self.on_death != "continue":
            raise ConfigurationError(
                f"replication={self.replication} is for trainings that go on when a server dies; give "
                'on_death="continue"'
            )

    def placed(self, workers: int, own: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks of the servers; the ranks `own` are servers only.

        Raises `ConfigurationError` where there are not as many as wanted.
        """
        if self.servers == "own" and not own:
            raise ConfigurationError('servers="own" needs servers that are no workers; give quorate run --servers')
        if own and self.servers != "own":
            raise ConfigurationError(
                f'servers of their own were started, and servers is {self.servers!r}; it must be "own" where there '
                "are such"
            )
        count = workers if self.servers == "all" else self.servers
        if isinstance(count, int) and count > workers:
            raise ConfigurationError(f"servers={count} needs as many workers, and there are {workers}")
        ranks = tuple(own) if isinstance(count, str) else tuple(range(count))
        if self.replication > len(ranks):
            raise ConfigurationError(
                f"replication={self.replication} needs as many servers, and there {'is' if len(ranks) == 1 else 'are'} "
                f"{len(ranks)}"
            )
        return ranks
