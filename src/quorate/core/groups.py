"""Workers that step together as one: a strategy's view of its group, and the messages that they exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from quorate.core.vectors import Flat

Leaves = Literal["", "pauses", "ended"]


@dataclass(frozen=True)
class Said:
    """The message of one worker of a group in an exchange. Vectors may be its memory: they are not written to."""

    header: Mapping[str, Any]
    gradient: Flat | None = None
    """Its gradient times the weight of its step, where it has one, and is not alone."""
    unused: frozenset[int] = frozenset()
    """The parameters of which it has none, counted in the order of their layout."""
    weight: float = 1.0
    leaves: Leaves = ""
    """Whether it takes part in no further exchange until all workers have paused, or never again."""
    digest: str | None = None
    """The digest of its replica, from a doubt that replicas are equal until they have been made so."""


class Group(Protocol):
    """The workers that step together with this one. All workers that step take part in each exchange, and all survivors
    get the same messages, even where a worker dies in the middle of it."""

    ranks: tuple[int, ...]
    """Ranks of the group, in order."""

    @property
    def others(self) -> frozenset[int]:
        """The ranks besides this worker that step and have not died."""

    @property
    def dead(self) -> frozenset[int]:
        """The ranks that have died, as far as this worker knows."""

    def exchange(
        self, header: Mapping[str, Any], *, weight: float | None = None, leaves: Leaves = ""
    ) -> dict[int, Said]:
        """Return the messages of all that step, by rank, in order; the header is plain JSON.

        With a `weight`, the gradient travels as well. Alone it costs nothing.
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
        """Return the header and tensors of `source`, which steps; None if it has died. They are not written to.

        All that step call it; a worker that `takes` gets its parameters, and the state of its optimizer, as well.
        """

    def paused(self, number: int) -> None:
        """Note that all workers have paused in round `number`: those of the group that have not ended step again."""


class Standing(Protocol):
    """The place of one worker in its rounds, for learners of several workers."""

    @property
    def version(self) -> int:
        """The newest round that it has applied."""

    @property
    def newest(self) -> int:
        """The newest round that is here."""

    @property
    def holds(self) -> int:
        """The newest round that has something of this worker, as far as it knows; it may still be under way."""

    @property
    def missing(self) -> frozenset[int]:
        """The ranks of learners of several workers that had died by round `version`, or were silent for long."""

    def until(self, number: int) -> None:
        """Return when that round is here, or a copy of a replica, or another worker has come to lead."""

    def call(self) -> None:
        """Call for a round with nothing new for it, and wait for it, as `Work.wait` does."""

    def withdraw(self) -> None:
        """No further round takes contributions of this worker, until it contributes again."""
