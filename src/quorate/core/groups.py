"""Workers that step together as one: a strategy's view of its group, and the messages that they exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from quorate.core.vectors import Flat

Leaves = Literal["", "rests", "ended"]


@dataclass(frozen=True)
class Said:
    """The message of one worker of a group in an exchange. Vectors may be its memory: they are read-only."""

    header: Mapping[str, Any]
    gradient: Flat | None = None
    """Its gradient times the weight of its step, where it has one, and is not alone."""
    unused: frozenset[int] = frozenset()
    """Indices, in the order of their layout, of parameters without a gradient."""
    weight: float = 1.0
    leaves: Leaves = ""
    """Whether it takes part in no further exchange until all workers have rested, or never again."""
    digest: str | None = None
    """Digest of its replica, from the first doubt that replicas are equal until they have been made so."""


class Group(Protocol):
    """The workers that step together with this one. All workers that step take part in each exchange, and all survivors
    get the same messages, even where a worker dies in the middle of it."""

    ranks: tuple[int, ...]
    """Ranks of the group, in order."""

    @property
    def others(self) -> frozenset[int]:
        """The other workers that step and have not died."""

    @property
    def dead(self) -> frozenset[int]:
        """Workers that have died, as far as this worker knows."""

    def exchange(
        self, header: Mapping[str, Any], *, weight: float | None = None, leaves: Leaves = ""
    ) -> dict[int, Said]:
        """Return the messages of all workers that step, by rank, in order; the header is plain JSON.

        With a `weight` they hold the gradient as well. A worker that is alone communicates nothing.
        """

    def write_gradient(self, messages: Sequence[Said]) -> None:
        """Replace this worker's gradient by the weighted mean of those in `messages`; the same bits on all workers."""

    def doubt(self) -> None:
        """Send the digest of this replica in exchanges from now on, as it may differ from the others."""

    def trust(self) -> None:
        """Send no digests any more, as replicas are equal; see `doubt`."""

    def copy_replica(
        self, source: int, header: Mapping[str, Any], tensors: Sequence[Tensor], *, takes: bool
    ) -> tuple[Mapping[str, Any], tuple[Tensor, ...]] | None:
        """Return the header and tensors (read-only) of `source`, a worker that steps; None where it has died.

        All workers that step call it; with `takes` a worker gets the source's parameters and optimizer state as well.
        """

    def rested(self, number: int) -> None:
        """Record the pause of all workers in round `number`: all of the group that have not ended step again."""
