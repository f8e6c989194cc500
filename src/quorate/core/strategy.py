"""A strategy, and all that it can see of the worker that it drives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from quorate.core.clients import ClientRound, ClientTerms, Turn
from quorate.core.errors import ConfigurationError
from quorate.core.groups import Group
from quorate.core.means import Mean, Means, WorkerRounds
from quorate.core.neighbours import Neighbours
from quorate.core.own_replica import OwnReplica
from quorate.core.redundancy import Redundancy
from quorate.core.servers import Servers, ServerTerms
from quorate.core.vectors import Flat, Layout


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
    seed: int
    has_ended: bool
    """Whether it has called `finish`: it steps no more."""

    @property
    def replica(self) -> OwnReplica:
        """The parameters, and what the optimizer keeps of them, as vectors."""

    @property
    def means(self) -> Means:
        """Means of all workers."""

    @property
    def neighbours(self) -> Neighbours:
        """The other workers, one by one; a strategy that uses them begins in `start`, on every worker."""

    def now(self) -> float:
        """Return the seconds since an arbitrary moment; the moment is the same for all workers of a virtual world.

        Raises:
            ConfigurationError: Several optimizers are distributed: workers would come to the means of each in
                different orders.
        """

    @property
    def step_began(self) -> float:
        """When the step that is being made began, in the seconds of `now`."""

    @property
    def examples(self) -> int:
        """The examples of this step. Raises `ConfigurationError` if the loader is not of `quorate.shard`."""

    @property
    def turn(self) -> Turn | None:
        """Whose batch that step is of; None where no clients are played. Raises `ConfigurationError` for several."""

    @property
    def client_round(self) -> ClientRound | None:
        """The round of clients whose sum has not been formed, also where none of them is this worker's."""

    @property
    def gradient(self) -> Flat:
        """A copy of the gradient as it stands in `.grad`; assigning writes it there.

        Parameters that no worker used in the newest mean of gradients keep what they have.
        """

    @gradient.setter
    def gradient(self, value: Flat) -> None: ...

    @property
    def parameters(self) -> Flat:
        """A copy of the parameters; assigning writes them into the model."""

    @parameters.setter
    def parameters(self, value: Flat) -> None: ...

    @property
    def rounds(self) -> WorkerRounds:
        """Rounds, once the strategy has agreed on them."""

    @property
    def servers(self) -> Servers:
        """Servers, once the strategy has agreed on them."""

    @property
    def own_servers(self) -> Sequence[int]:
        """Ranks that were started as servers, and are no workers."""

    def agree_on_servers(self, terms: ServerTerms) -> None:
        """Let parameters lie on servers; called in `start`, equally on every worker."""

    def group(self, ranks: Sequence[int]) -> Group:
        """These workers, this one among them, which step together; the same from call to call. Other workers may be in
        groups of their own."""

    def agree_on_rounds(
        self,
        *,
        clip_norm: float | None = None,
        measures: bool = False,
        momentum: Literal["auto", "worker", "common"] = "common",
        fragments: Sequence[Layout] = (),
        units: Callable[[Flat, int], Sequence[float]] | None = None,
        **settings: Any,
    ) -> None:
        """Begin rounds with the settings of `rounds.terms.Agreed`; called in `start`, equally on every worker.

        `momentum` says whether each worker keeps the momentum of its own gradients, where they are contributed
        (`replica.worker_momentum`), or the shared optimizer; "auto": the workers, where it has some and rounds are of
        less than all. With `measures` workers tell what they have measured with each gradient (two passes over it).
        With the layouts of `fragments` rounds are of one fragment after the other: see `WorkerRounds.hand_in`.
        `units(given, size)` says by tensor how many times as large as in its own unit is what a worker gives, where
        that is not its weight over the number of workers: codecs have settings in that unit.
        """

    def update(self, gradient: Flat | None = None, *, at: Flat | None = None, options: Any = None) -> None:
        """One step of the user's own optimizer: on the gradient in `.grad`, or on `gradient`, while `.grad` stays.

        `options` are those of a round, instead of the optimizer's own. With `at` those numbers are updated, in place,
        and the model stays as it is.
        """

    def measure_distance(self, mean: Flat, *, only: Sequence[int] | None = None) -> None:
        """Record how far the model is from `mean`, a mean of all workers' replicas laid out as by `replica.read`.

        Called before `replica.write(mean)`. Does nothing where no records are kept. Cost otherwise: two passes over the
        parameters, in double precision.
        """

    def note_outer_step(self, fragment: int, measured: Mapping[str, Any]) -> None:
        """Record an outer step of a fragment; `measured` are fields of `records.rows.Outer`.

        Does nothing where no records are kept.
        """

    def updater(
        self, vector: Flat, memory: dict[str, Any], *, kind: str = "sgd", **options: Any
    ) -> Callable[[Flat], None]:
        """An optimizer of its own over `vector`, which is updated in place by every gradient that it is given.

        `kind` is a name of `replica.outer_optimizer.KINDS`. What the optimizer remembers is in `memory`, which is empty
        before the first step.
        """


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """When and with whom to agree, and on what. A frozen dataclass: its fields are its settings; it has no state.

    Its methods run in the training thread; parameters change only inside them.
    """

    meets: ClassVar[Literal["all", "rounds", "neighbours", "asks", "servers", "nobody"]] = "all"
    """Whom a step meets: all workers, in means (`Worker.means`); a quorum of them, in rounds (`Worker.rounds`); its
    neighbours in exchanges, or single workers that it asks (`Worker.neighbours`); servers, on which the parameters lie
    (`Worker.servers`); or nobody."""
    replicas: ClassVar[Literal["equal", "meet", "differ", "shared"]] = "equal"
    """When replicas are equal: after each step; where they meet in means of all, and when all rest; or only at the end,
    where each becomes the consensus. Shared: the parameters are there once for all, in memory that the workers of one
    host write to. Replicas that are not equal after each step are compared only at the end, and each optimizer's state
    is its worker's own."""

    compresses: ClassVar[Literal["nothing", "gradients", "ways", "differences"]] = "nothing"
    """The vectors that codecs may write small: those of all its means, gradients (`Means.of_gradient`) or how far
    workers went (`Means.of`); nothing if some means are of parameters, which a codec would spoil. Under gossip
    differences from copies that neighbours keep of each other (`Neighbours.written`), which remember by themselves what
    a codec leaves out."""
    reduction: ClassVar[Mapping[str, object]] = {}
    """How its means are formed where `compress` is not given: that, and the settings beside it, by name."""

    on_death: Literal["stop", "continue"] = "stop"
    """Whether all workers stop when a worker dies, or the others continue without it."""
    on_error: Literal["stop", "continue"] = "stop"
    """Whether all stop when a worker's script raises, or the others continue as after a death; the run fails."""
    buffers: Literal["none", "mean", "rank0", "rank0-each-step"] = "rank0"
    """Buffers (BatchNorm statistics) at an evaluation and at the end: each worker's own, the mean, rank 0's. With
    "rank0-each-step" rank 0's as well, and in each step of those that forward passes have moved (all-reduce only)."""

    @property
    def _meets_in_means(self) -> bool:
        return self.meets == "all" and self.replicas == "meet"

    @property
    def waits(self) -> bool:
        """Whether every step waits for others; where not, `shard` by default deals data out to whoever asks."""
        return self.meets in ("all", "neighbours")

    @property
    def agrees_in_backward(self) -> bool:
        """Whether `backward` agrees on the gradient."""
        return type(self).backward is not Strategy.backward

    @property
    def acts_on_pieces(self) -> bool:
        """Whether workers that hold the pieces of one replica decide alike, each by itself.

        They do where what is done, and with whom, follows from the step alone: not from numbers, from the clock, or
        from what has arrived. What rounds have formed is the same for all of them.
        """
        return False

    @property
    def client_terms(self) -> ClientTerms | None:
        """How many clients a round has, and what they compute, where it is for clients of federated training."""
        return None

    @property
    def lets_join(self) -> bool:
        """Whether workers may join a training under way, where others outlive a death.

        All workers must have begun equally many collectives when a step ends.
        """
        return not is_gossip(self)

    @property
    def redundancy(self) -> Callable[[int], Redundancy] | None:
        """How so many workers (or it raises `ConfigurationError`) compute the same batches; None: each has its own."""
        return None

    def __post_init__(self) -> None:
        if self.on_error == "continue" and self.on_death != "continue":
            raise ConfigurationError(
                'on_error="continue" needs a strategy that goes on when a worker dies, which is what on_death says; '
                'without one leave it "stop"'
            )
        if copies_buffers(self) and not (self.meets == "all" and self.replicas == "equal" and self.agrees_in_backward):
            raise ConfigurationError(
                'buffers="rank0-each-step" needs a strategy that averages the gradients of all workers in every step '
                '(all-reduce); others take "rank0", "mean" or "none", at pauses of all workers'
            )

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

    def contribution(self, worker: Worker) -> tuple[Flat, float] | None:
        """Return what this worker gives to a mean of all, and its weight. None: zeros with weight 0.

        Called for each mean in which a worker that rests or has ended takes part; `step` may use it, too. By default
        what `consensus` says, where replicas meet in means.
        """
        return self.consensus(worker) if self._meets_in_means else None

    def apply(self, worker: Worker, result: Mean) -> None:
        """Apply a mean of the others that this worker took part in without stepping; not called if nobody gave any.

        By default: under rounds one step of the user's optimizer; where replicas meet in means of all, the mean is
        written into the model. `step` may use it, too.
        """
        if self.meets == "rounds":
            worker.update(result.mean, options=result.options)
        elif self._meets_in_means:
            worker.parameters = result.mean

    def settle(self, worker: Worker) -> None:  # noqa: B027
        """Called when all workers rest or have ended: run the collectives that are left, the same on every worker.

        What neighbours gave in exchanges that this worker took no part in is in `worker.neighbours.late()`.
        """

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        """The parameters of this replica in the mean of all, and their weight: for evaluations, the end, and copies.

        By default the model's, with weight 1.
        """
        return worker.parameters, 1.0

    def restored(self, worker: Worker, at: Flat | None) -> None:  # noqa: B027
        """The parameters are others, by no step of this worker.

        With None the model and `worker.state` are what a checkpoint has kept, or what `start` has made anew. Else the
        consensus is `at`: in a copy of a replica, or as the script has changed it inside `world.evaluate()`; the model
        has it where replicas are equal or meet, and the change where they differ.
        """

    def drain(self, worker: Worker) -> None:  # noqa: B027
        """Leave nothing of this strategy in flight."""

    def finish(self, worker: Worker) -> None:  # noqa: B027
        """Called when all workers have ended and every replica is the same: nothing is held for others any more."""


def is_gossip(strategy: Strategy) -> bool:
    """Return whether a step meets single workers."""
    return strategy.meets in ("neighbours", "asks")


def steps_apart(strategy: Strategy) -> bool:
    """Return whether no step brings all workers together, nor a quorum of them."""
    return is_gossip(strategy) or strategy.meets in ("servers", "nobody")


def copies_buffers(strategy: Strategy) -> bool:
    """Return whether workers get rank 0's forward buffers in each step."""
    return strategy.buffers == "rank0-each-step"


def buffers_at_pauses(strategy: Strategy) -> Literal["none", "mean", "rank0"]:
    """Return what all buffers become at pauses of all workers."""
    return "rank0" if strategy.buffers == "rank0-each-step" else strategy.buffers
