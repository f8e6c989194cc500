"""Means as a strategy sees them: of all workers, and of those in a round; and the measures that travel with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from quorate.core.contracts import Work
from quorate.core.groups import Standing
from quorate.core.vectors import Flat


class Means(Protocol):
    """Means of all workers. Every worker begins equally many; those that have ended take part with weight 0."""

    share: float
    """The share of all workers whose vectors are in the newest mean of vectors, as their weights are above 0."""

    def of(self, x: Flat, *, weight: float = 1.0, looks: bool = False) -> Work[Flat]:
        """Begin the weighted mean of the `x` of all workers; the result has the layout of `x`.

        With `looks` all workers learn whose numbers are not finite, as of a gradient; `Worker.update` acts on it.
        Raises `ConfigurationError` while parts of this worker's gradient are in flight: a strategy that overrides
        `backward` calls `of_gradient` first.
        """

    def of_gradient(self) -> Work[Flat]:
        """Begin the mean of the gradients in `.grad` of all workers, each with its `Worker.weight`.

        In `Strategy.backward` the exchange has begun while the backward pass ran. Its header tells all workers which
        parameters were used, and which gradients are not finite. The result is valid until the next backward pass.
        """

    def gather(self, numbers: Sequence[float]) -> list[list[float]] | None:
        """Return the `numbers` of every worker, at a pause of all; None where some have ended, and others not."""

    def code(self, chosen: Mapping[str, Tensor] | None) -> None:
        """Let the codec encode sums from the next one on, or with None leave them dense, as they are at first.

        Only for strategies that compress momenta; all workers call it between the same two means. `chosen` has the
        places of the numbers that are encoded, by the name of the tensor; of a missing name all are. Other numbers of
        these tensors are 0 in means.
        """

    def step_alone(self, is_alone: bool) -> None:
        """Set whether backward passes, from the next one on, send no gradient, though the strategy may agree there."""

    def vote(self, is_ready: bool) -> bool:
        """Vote in the next mean and in every one after it if `is_ready`; a vote is not taken back.

        Returns whether any worker had voted by the newest mean; this turns True on all workers in the same one.
        """


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean of vectors of workers: of one round, or of all workers."""

    mean: Flat
    """The mean; clipped in a round that was begun with `clip_norm`."""
    contributions: int = 0
    """The number of this worker's contributions in the round, which takes them in order."""
    options: Any = None
    """The numbers of the optimizer to apply the mean of a round with."""
    measured: Measured | None = None
    """The measures of the round, if its workers measure."""
    payloads: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    """The payloads of each worker's contributions to a round of fragments, by rank."""
    fragments: Mapping[int, Flat] = field(default_factory=dict)
    """The sum of contributions, by number of the fragment, in a round of fragments; of all fragments at a pause."""
    learners: int = 0
    """The number of learners that have not died, nor, if they are of several workers, been silent for long."""
    ages: Mapping[int, int] = field(default_factory=dict)
    """The age of each worker's contribution to a round of fragments, by rank: how many rounds of its fragment have
    passed since its steps began."""


class WorkerRounds(Protocol):
    """The rounds of one optimizer; `Worker.agree_on_rounds` begins them."""

    def contribute(
        self, vector: Flat | None = None, *, waits: bool = True, weight: float | None = None, version: int | None = None
    ) -> Work[int]:
        """Contribute the gradient in `.grad`, unscaled, or `vector`; done when the worker may go on.

        `weight` is its weight, by default that of this step (`Worker.weight`). `waits` says whether the strategy waits
        for it before the worker goes on computing. `version` is the round on whose parameters the gradient was
        computed; None: the newest that this replica has applied.
        """

    def hand_in(
        self,
        vectors: Sequence[Flat],
        *,
        fresh: float,
        payload: Any = None,
        waits: bool = False,
        slack: float | None = None,
        began: int | None = None,
    ) -> Work[int]:
        """Contribute the delta of each fragment since a round took the one before, in rounds of fragments.

        It replaces an older contribution that no round has taken. `fresh` is the number of steps that are new in it.
        `payload` is any JSON that goes with it into its rounds (`Mean.payloads`). `slack` is the number of seconds that
        the worker can go on without the result (None: unknown). `began` is the newest round that the worker had applied
        when its steps began; their age is counted from it (None: the newest now). The strategy does not use the vectors
        any more.
        """

    def hand_in_last(
        self, vectors: Sequence[Flat], *, fresh: float, payload: Any = None, began: int | None = None
    ) -> Work[int] | None:
        """Contribute as `hand_in`, in `drain`.

        Does nothing if a round has taken a contribution that this worker has not applied yet. It then returns the work
        to wait for; apply that round afterwards, and contribute again.
        """

    def completed(self, *, up_to: int | None = None, keeps_at_once: bool = False) -> Iterator[Mean]:
        """Yield the rounds that have arrived (`up_to` that number), in order; apply each before you ask for the next.

        A copy of a replica that has arrived is taken before any. Rounds after one of which a checkpoint is taken come
        once it was taken: at a boundary between steps, or at once with `keeps_at_once`.
        """

    @property
    def standing(self) -> Standing:
        """The place of this worker in its rounds."""

    def agree(self, *, why: str = "", **settings: Any) -> None:
        """Ask for other settings (`wait_for`, `max_staleness`); `why` is a sentence for the records.

        They hold on all workers from the same round on, which the leader decides; `round` rows show it.
        """


@dataclass(frozen=True)
class WorkerMeasures:
    """The measures of one gradient, by the worker that has computed it."""

    work: float
    """Seconds from the end of the step before to the gradient, without waits for other workers."""
    waited: float | None
    """Seconds that the worker waited in the step before; None where it did not wait for a round."""
    loss: float | None
    """The loss on which backward was called; None if it is not known (on a GPU, or scaled)."""
    square: float
    """Squared Euclidean norm of the gradient, times the same factor as in `Measured.square`."""


@dataclass(frozen=True)
class Measured:
    """The measures of one round; equal on all workers."""

    number: int
    wait_for: int
    """Number of workers that had to call for the round."""
    gradients: int
    """Number of gradients in the round."""
    measures: Sequence[tuple[int, WorkerMeasures]]
    """(rank, measurements sent with a gradient), in order of rank; fewer than `gradients` after a checkpoint was
    loaded."""
    square: float
    """The squared Euclidean norm of the sum of these gradients, each divided by the number of workers."""
    smoothing: float = 1.0
    """Share of the noise of gradients that is left in the vectors sent, and in these squares: momentum removes some."""
