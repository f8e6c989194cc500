"""What a strategy is, and all it can see of the worker it drives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from quorate.core.contracts import Clock, Work
from quorate.core.vectors import Flat


class Peers(Protocol):
    """The other workers, as one strategy sees them."""

    rank: int
    size: int

    def mean(self, x: Flat, *, weight: float = 1.0) -> Work[Flat]:
        """The mean of everyone's `x`, weighted; workers that have ended take part with weight 0.

        For `worker.gradient` the exchange may have begun during backward already. Every worker calls it equally often.
        """
        ...


class Mean(Protocol):
    """What one round has formed."""

    @property
    def mean(self) -> Flat:
        """The mean of what was given, clipped where that was agreed."""
        ...

    @property
    def options(self) -> Any:
        """The optimizer's numbers to apply it with."""
        ...


class WorkerRounds(Protocol):
    """The rounds of one optimizer; `Worker.agree_on_rounds` begins them."""

    def contribute(self, *, waits: bool = True) -> Work[int]:
        """Hand in the gradient as it stands in `.grad`, unscaled; the work is done when it need not be waited for.

        `waits` says whether the strategy does wait for it before the worker goes on computing.
        """
        ...

    def completed(self) -> Iterator[Mean]:
        """The rounds that are there, in order; each is to be applied before the next one is asked for."""
        ...

    def settle(self, *, ended: bool) -> None:
        """Wait until no worker steps, applying what comes: equal replicas, and nothing pending."""
        ...


class Worker(Protocol):
    """One replica: the user's model and optimizer, and the way to the others.

    `step` counts calls of `optimizer.step()` from 1. `weight` is what this worker's gradient counts in a mean.
    """

    rank: int
    size: int
    step: int
    weight: float
    state: Any

    @property
    def peers(self) -> Peers:
        """The other workers."""
        ...

    @property
    def clock(self) -> Clock:
        """Time as this worker sees it."""
        ...

    @property
    def gradient(self) -> Flat:
        """The gradient as it stands in `.grad`; assigning writes it there.

        Parameters that no worker used keep what they have.
        """
        ...

    @gradient.setter
    def gradient(self, value: Flat) -> None: ...

    @property
    def parameters(self) -> Flat:
        """A copy of the parameters; assigning writes them into the model."""
        ...

    @parameters.setter
    def parameters(self, value: Flat) -> None: ...

    @property
    def rounds(self) -> WorkerRounds:
        """Rounds, once the strategy has agreed on them."""
        ...

    def agree_on_rounds(self, *, clip_norm: float | None = None, **settings: Any) -> None:
        """Begin rounds with the settings of `rounds.terms.Agreed`; called in `start`, equally on every worker."""
        ...

    def update(self, gradient: Flat, *, options: Any = None) -> None:
        """One step of the user's own optimizer on `gradient`, with its own options or these; `.grad` stays."""
        ...

    def keep_company(self) -> None:
        """This worker has ended: take part in the others' means with weight 0 until all have ended."""
        ...


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """When and with whom to agree, and on what. A frozen dataclass: its fields are its settings, it has no state.

    Its methods run in the training thread; parameters change only inside them.
    """

    agrees_on: ClassVar[Literal["gradient", "parameters", "updates"]] = "gradient"
    waits: ClassVar[bool] = True
    """Whether every step waits for all workers. Where not, data is dealt out to whoever asks, unless told."""

    def which_buffers(self) -> Literal["none", "mean", "rank0"]:
        """What becomes of buffers at an evaluation and at the end: each worker's own, their mean, or rank 0's."""
        return "rank0"

    def start(self, worker: Worker) -> Any:
        """Called once; what it returns is `worker.state`."""
        return None

    def backward(self, worker: Worker) -> None:  # noqa: B027  (most strategies do nothing here)
        """Called when the outermost backward has ended, not inside `accumulate()`.

        A strategy that overrides it agrees on the gradient there, and parts travel while backward still runs.
        """

    @abstractmethod
    def step(self, worker: Worker) -> None:
        """Called by `optimizer.step()`."""

    def drain(self, worker: Worker) -> None:  # noqa: B027
        """Leave nothing of this strategy in flight."""

    def finish(self, worker: Worker) -> None:
        """Leave equal replicas; the default averages the parameters once all workers have ended."""
        self.drain(worker)
        worker.keep_company()
        worker.parameters = worker.peers.mean(worker.parameters).wait()
