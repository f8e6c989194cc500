"""What a strategy is, and all it can see of the worker it drives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from quorate.core.contracts import Clock, Work
from quorate.core.errors import ConfigurationError
from quorate.core.measured import Measured
from quorate.core.neighbours import Given, Neighbours
from quorate.core.own_replica import OwnReplica
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
    def mine(self) -> int:
        """How many of this worker's contributions are in it; they are taken in order."""
        ...

    @property
    def options(self) -> Any:
        """The optimizer's numbers to apply it with."""
        ...

    @property
    def measured(self) -> Measured | None:
        """What workers told with it, where they measure."""
        ...


class WorkerRounds(Protocol):
    """The rounds of one optimizer; `Worker.agree_on_rounds` begins them."""

    def contribute(self, vector: Flat | None = None, *, waits: bool = True, weight: float | None = None) -> Work[int]:
        """Hand in the gradient as it stands in `.grad`, unscaled, or `vector`; done when it need not be waited for.

        `weight` is what it counts, by default as much as this step (`Worker.weight`). `waits` says whether the strategy
        does wait for it before the worker goes on computing.
        """
        ...

    def completed(self) -> Iterator[Mean]:
        """The rounds that are there, in order; each is to be applied before the next one is asked for."""
        ...

    def agree(self, *, why: str = "", **settings: Any) -> None:
        """Ask for other settings (`wait_for`, `max_staleness`); `why` is a sentence for the records.

        In force, on all workers, from a round on that is decided in one place, and told in `round` rows.
        """
        ...

    def settle(self, *, ended: bool) -> None:
        """Wait until no worker steps, applying what comes: equal replicas, and nothing pending."""
        ...


class Worker(Protocol):
    """One replica: the user's model and optimizer, and the way to the others.

    `step` counts calls of `optimizer.step()` from 1. `weight` is what this worker's gradient counts in a mean. `seed`
    is the run's, equal on all workers.
    """

    rank: int
    size: int
    step: int
    weight: float
    state: Any
    replica: OwnReplica
    seed: int

    @property
    def peers(self) -> Peers:
        """The other workers, all together."""
        ...

    @property
    def neighbours(self) -> Neighbours:
        """The other workers, one by one; a strategy that uses them begins in `start`, on every worker."""
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

    def agree_on_rounds(self, *, clip_norm: float | None = None, measures: bool = False, **settings: Any) -> None:
        """Begin rounds with the settings of `rounds.terms.Agreed`; called in `start`, equally on every worker.

        With `measures` workers tell what they have measured with each gradient (two passes over it).
        """
        ...

    def update(self, gradient: Flat, *, at: Flat | None = None, options: Any = None) -> None:
        """One step of the user's own optimizer on `gradient`, with its own options or these; `.grad` stays.

        With `at` those numbers are updated, in place, and the model stays as it is.
        """
        ...

    def updater(
        self, vector: Flat, memory: dict[str, Any], *, kind: str = "sgd", **options: Any
    ) -> Callable[[Flat], None]:
        """An optimizer of its own over `vector`, which is updated in place by every gradient that it is given.

        `kind` is a name of `train.outer.KINDS`; what it remembers is in `memory`, which is empty before the first.
        """
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
    is_apart: ClassVar[bool] = False
    """Whether replicas differ between steps: they are compared only at the end, and their optimizers stay their own."""
    has_means: ClassVar[bool] = True
    """Whether its steps bring all workers together in means, with which word travels. Where not, who is asked to leave
    settles with all others, and no step waits for a worker that rests or has ended."""
    lets_join: ClassVar[bool] = False
    """Whether workers may join a training under way, where others are outlived: one that agrees in rounds of all, or in
    sums of all of which each worker has begun as many at the end of each step."""

    on_error: Literal["stop", "continue"] = "stop"
    """Whether all stop when the script of a worker raises, or the others go on as after a death, and the run fails."""

    def __post_init__(self) -> None:
        if self.on_error == "continue" and not self.outlives():
            raise ConfigurationError(
                'on_error="continue" needs a strategy that goes on when a worker dies, which is what on_death says; '
                'without one leave it "stop"'
            )

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

    def leftover(self, worker: Worker) -> tuple[Flat, float] | None:
        """What this worker, which does not step any more, gives to the next mean of all, and its weight.

        Asked for each mean until all workers have ended or rest. None: nothing, in a vector of all parameters.
        """
        return None

    def follow(self, worker: Worker, mean: Flat) -> None:  # noqa: B027
        """A mean of the others in which this worker took part without stepping; not called where nobody gave any."""

    def rested(self, worker: Worker) -> None:  # noqa: B027
        """All workers rest: what is left to be agreed on, in means that all take part in; replicas are equal after it.

        Workers that have ended take part in them through `leftover` and `follow`.
        """

    def outlives(self) -> bool:
        """Whether the others go on when a worker dies, with what this strategy is set to; else all stop."""
        return False

    def mass(self, worker: Worker) -> float:
        """The weight of this replica in the mean of all, at an evaluation and at the end."""
        return 1.0

    def consensus(self, worker: Worker) -> Flat:
        """The parameters of this replica in the mean of all, at an evaluation and at the end; by default the model's.

        A strategy overrides it where something that it has received is not in the model yet.
        """
        return worker.parameters

    def absorb(self, worker: Worker, late: Sequence[Given]) -> None:  # noqa: B027
        """All workers rest, or have ended: what neighbours gave in rounds that this worker took no part in."""

    def apply(self, worker: Worker, one: Mean) -> None:
        """Apply a round while this worker does not step; the default is one step of the user's optimizer."""
        worker.update(one.mean, options=one.options)

    def common(self, worker: Worker) -> Flat | None:
        """Under rounds: the numbers that are equal on all workers after the same round. None: the model's."""
        return None

    def adopted(self, worker: Worker, common: Flat) -> None:  # noqa: B027
        """The model's parameters are `common` now, by no step of this worker.

        Called where a worker that was too far behind has got a copy of a replica, its optimizer's state too, and where
        the script has written into the parameters of all workers inside `world.evaluate()`.
        """

    def resumed(self, worker: Worker) -> None:  # noqa: B027
        """The model and `worker.state` are what a checkpoint has kept."""

    def drain(self, worker: Worker) -> None:  # noqa: B027
        """Leave nothing of this strategy in flight."""

    def finish(self, worker: Worker) -> None:
        """Leave equal replicas; the default averages the parameters once all workers have ended."""
        self.drain(worker)
        worker.keep_company()
        worker.parameters = worker.peers.mean(self.consensus(worker), weight=self.mass(worker)).wait()
