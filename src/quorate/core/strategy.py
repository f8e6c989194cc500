"""A strategy, and all that it can see of the worker that it drives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from quorate.core.clients import ClientRound, ClientTerms, Turn
from quorate.core.errors import ConfigurationError, unknown
from quorate.core.groups import Group
from quorate.core.means import Mean, Means, WorkerRounds
from quorate.core.moments import AgreedMomentum
from quorate.core.neighbours import Neighbours
from quorate.core.own_replica import OwnReplica
from quorate.core.redundancy import Redundancy
from quorate.core.servers import Servers, ServerTerms
from quorate.core.vectors import Flat, Layout


class Worker(Protocol):
    """One replica: the user's model and optimizer, and the other workers. A strategy's hooks are called with it."""

    rank: int
    size: int
    """The number of workers of the start."""
    step: int
    """The number of calls of `optimizer.step()`, from 1."""
    weight: float
    """The weight of this worker's gradient in a mean."""
    state: Any
    """The result of `Strategy.start`."""
    seed: int
    """The seed of the run, equal on all workers."""
    has_ended: bool
    """Whether this worker has called `finish`: it makes no more steps."""

    @property
    def replica(self) -> OwnReplica:
        """The parameters and the state of the optimizer, as vectors."""

    @property
    def means(self) -> Means:
        """Means of all workers."""

    @property
    def neighbours(self) -> Neighbours:
        """The other workers, one by one. A strategy that uses them begins to in `start`, on every worker."""

    def now(self) -> float:
        """Return the seconds since an arbitrary moment; the moment is the same for all workers of a virtual world.

        Raises:
            ConfigurationError: Several optimizers are distributed: workers would come to the means of each in
                different orders.
        """

    @property
    def step_seconds(self) -> float:
        """Seconds since the current step began, to measure by; workers differ in them, and may not act on them."""

    @property
    def step_began(self) -> float:
        """The time at which the current step began, in the seconds of `now`."""

    @property
    def examples(self) -> int:
        """The examples of the current step. Raises `ConfigurationError` if the loader is not of `quorate.loader`."""

    @property
    def turn(self) -> Turn | None:
        """The client of the current step; None if no clients are played. Raises `ConfigurationError` for several."""

    @property
    def client_round(self) -> ClientRound | None:
        """The round of clients whose sum has not been formed, also if none of them is this worker's."""

    @property
    def gradient(self) -> Flat:
        """A copy of the gradient in `.grad`; assigning writes it there.

        Parameters that no worker used in the newest mean of gradients keep their `.grad`.
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
        """The rounds; `agree_on_rounds` begins them."""

    @property
    def servers(self) -> Servers:
        """The servers; `agree_on_servers` begins them."""

    @property
    def own_servers(self) -> Sequence[int]:
        """The ranks that were started as servers, and are no workers."""

    def agree_on_servers(self, terms: ServerTerms) -> None:
        """Move the parameters to servers. Called in `start`, equally on every worker."""

    def group(self, ranks: Sequence[int]) -> Group:
        """Return the group of these workers, which step together; this worker is one of them.

        Every call names the same ranks. Other workers may be in groups of their own.
        """

    def agree_on_rounds(
        self,
        *,
        clip_norm: float | None = None,
        measures: bool = False,
        momentum: Literal["auto", "worker", "common"] = "common",
        correct: Literal["delay"] | None = None,
        fragments: Sequence[Layout] = (),
        units: Callable[[Flat, int], Sequence[float]] | None = None,
        **settings: Any,
    ) -> None:
        """Begin rounds. Called in `start`, equally on every worker.

        Args:
            clip_norm: The largest norm of a round's mean; larger means are clipped.
            measures: Whether workers measure their steps and gradients (`Mean.measured`). Cost: two passes over each
                gradient.
            momentum: "worker": each worker keeps the momentum of its own gradients (`replica.worker_momentum`);
                "common": the optimizer keeps it; "auto": workers keep it, if any, where rounds are of less than all.
            correct: "delay": steps are corrected as steps of gradients that are one round old
                (`optim.delay_correction`).
            fragments: The layouts of fragments, if rounds are of one fragment after the other: see
                `WorkerRounds.hand_in`.
            units: `units(contribution, size)` returns, by tensor, the unit of its numbers, in which codecs have their
                settings; by default the weight of the contribution over the number of workers.
            settings: The settings of `rounds.terms.Agreed`.
        """

    def update(
        self,
        gradient: Flat | None = None,
        *,
        at: Flat | None = None,
        options: Any = None,
        momentum: AgreedMomentum | None = None,
    ) -> None:
        """Make one step of the user's optimizer.

        Args:
            gradient: The gradient of the step; None: that in `.grad`. `.grad` keeps its numbers.
            at: Parameters to be updated in place, instead of those of the model, which stay as they are.
            options: The optimizer's options of a round (`Mean.options`), instead of its own.
            momentum: The momentum of the step, which then has no gradient, and leaves the variance as it is.
        """

    def measure_distance(self, mean: Flat, *, only: Sequence[int] | None = None) -> None:
        """Record the distance of the model from `mean`, a mean of all replicas in the layout of `replica.read`.

        Called before `replica.write(mean)`. It does nothing if no records are kept; otherwise it costs two passes over
        the parameters, in double precision.
        """

    def note_outer_step(self, fragment: int, measured: Mapping[str, Any] | None, *, reach: float | None) -> None:
        """Record an outer step of a fragment, if records are kept, and report that the loss rises after such steps.

        Args:
            fragment: The number of the fragment.
            measured: Fields of `records.rows.Outer`; None: nothing is recorded.
            reach: The length of the step along its gradient, in multiples of that gradient.
        """

    def propose(self, strategy: str, why: str, *, acts: bool) -> bool:
        """Record and report another strategy, and the reason; return whether it is to be followed from here on.

        It is if `acts`, and the training has not ended.
        """

    def updater(
        self, vector: Flat, memory: dict[str, Any], *, kind: str = "sgd", **options: Any
    ) -> Callable[[Flat], None]:
        """Return a function that updates `vector` in place by a gradient, with an optimizer of its own.

        Args:
            vector: The parameters of that optimizer.
            memory: The state of that optimizer; empty before the first step.
            kind: A name of `replica.outer_optimizer.KINDS`.
            options: The options of that optimizer, such as `lr`.
        """


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """A distributed algorithm: when and with which workers to agree, and on what.

    It is a frozen dataclass whose fields are its settings; its state is `Worker.state`. Its hooks run in the training
    thread; parameters change only inside them.
    """

    meets: ClassVar[Literal["all", "rounds", "neighbours", "asks", "servers", "nobody"]] = "all"
    """The workers that a step meets. In means these are all workers (`Worker.means`), in rounds a quorum of them
    (`Worker.rounds`). In exchanges they are the worker's neighbours, or single workers that it asks
    (`Worker.neighbours`). They may also be servers, on which the parameters lie (`Worker.servers`), or nobody.
    """
    replicas: ClassVar[Literal["equal", "meet", "differ", "shared"]] = "equal"
    """When replicas are equal: after each step; at means of all, and at pauses; or only at the end, where each becomes
    the consensus. Shared: all workers of one host write to the same parameters. Replicas that are not equal after each
    step are compared only at the end, and each optimizer's state is its worker's own."""

    optimizers: ClassVar[Sequence[str]] = ()
    """The classes of optimizers that it knows, with those derived from them, as `module.name`; empty: all."""

    compresses: ClassVar[Literal["nothing", "gradients", "deltas", "differences", "momenta"]] = "nothing"
    """The vectors that codecs may write small. These are the vectors of all its means: gradients (`Means.of_gradient`)
    or deltas (`Means.of`). Momenta are written small where the strategy says so (`Means.code`).
    It is nothing if some means are of parameters, which a codec would spoil. Under gossip these are differences from
    copies that neighbours keep of each other (`Neighbours.written`), which remember by themselves what a codec leaves
    out.
    """
    _sparse_gradients: ClassVar[Literal["rows", "changes", "both", "refused"] | None] = None
    """See `sparse_gradients_of`; None: it follows from the others."""

    reduction: ClassVar[Mapping[str, object]] = {}
    """The default of `compress`, and of the settings beside it, by name."""

    on_death: Literal["stop", "continue"] = "stop"
    """Whether all workers stop when one dies, or the others continue without it."""
    batch: Literal["shrunk", "kept"] = "shrunk"
    """The batch of a step after a death, if the others continue. "shrunk": that of the workers that live. "kept": that
    of the start, as they compute the micro-batches of the dead worker as well (all-reduce, and quorums of all)."""
    on_error: Literal["stop", "continue"] = "stop"
    """Whether all workers stop when one worker's script raises an error, or the others continue as after a death. The
    run fails in both cases."""
    buffers: Literal["none", "mean", "rank0", "rank0-each-step"] = "rank0"
    """Buffers (such as BatchNorm statistics) used at an evaluation and at the end: those of each worker, their mean, or
    those of rank 0. "rank0-each-step" also sends rank 0's buffers in each step if forward passes change them
    (all-reduce only).
    """

    @property
    def _meets_in_means(self) -> bool:
        return self.meets == "all" and self.replicas == "meet"

    @property
    def _keeps_batch(self) -> bool:
        """Whether `batch="kept"` is possible, as each step is the plain mean of the gradients of all workers."""
        return False

    @property
    def waits(self) -> bool:
        """Whether every step waits for others; if not, `loader` by default deals data out to whoever asks."""
        return self.meets in ("all", "neighbours")

    @property
    def agrees_in_backward(self) -> bool:
        """Whether `backward` agrees on the gradient."""
        return type(self).backward is not Strategy.backward

    @property
    def acts_on_pieces(self) -> bool:
        """Whether workers that hold the pieces of one replica decide alike, each by itself.

        They do if all actions follow from the number of the step, and from rounds, which are equal on all of them.
        Actions must not follow from parameters, from the clock, or from the order of arrival.
        """
        return False

    @property
    def client_terms(self) -> ClientTerms | None:
        """The clients of a round and their work, in federated training; None otherwise."""
        return None

    @property
    def lets_join(self) -> bool:
        """Whether workers may join a training under way, if it goes on after deaths.

        They may only if all workers have begun equally many collectives when a step ends, and none is in flight.
        """
        return not is_gossip(self)

    @property
    def redundancy(self) -> Callable[[int], Redundancy] | None:
        """A function from the number of workers to how they compute the same batches; None: each has its own."""
        return None

    def __post_init__(self) -> None:
        if self.on_error == "continue" and self.on_death != "continue":
            raise ConfigurationError(
                'on_error="continue" needs a strategy that goes on when a worker dies, which is what on_death says; '
                'without one leave it "stop"'
            )
        if self.batch not in ("shrunk", "kept"):
            raise unknown("batch", str(self.batch), ("shrunk", "kept"))
        if self.batch == "kept" and self.on_death != "continue":
            raise ConfigurationError(
                'batch="kept" is for trainings that go on when a worker dies; set on_death="continue" as well'
            )
        if copies_buffers(self) and not (self.meets == "all" and self.replicas == "equal" and self.agrees_in_backward):
            raise ConfigurationError(
                'buffers="rank0-each-step" needs a strategy that averages the gradients of all workers in every step '
                '(all-reduce); others take "rank0", "mean" or "none", at pauses of all workers'
            )

    def start(self, worker: Worker) -> Any:
        """Return the new `worker.state`; called once, and again if other parameters are trained than before."""
        return None

    def backward(self, worker: Worker) -> None:  # noqa: B027  (most strategies do nothing here)
        """Agree on the gradient; called when the outermost backward has ended, not inside `accumulate()`.

        If a strategy overrides it, parts of the gradient travel while backward still runs.
        """

    @abstractmethod
    def step(self, worker: Worker) -> None:
        """Make a step of this worker; called by `optimizer.step()`."""

    def contribution(self, worker: Worker) -> tuple[Flat, float] | None:
        """Return the vector of this worker for a mean of all, and its weight. None: zeros with weight 0.

        Called for each mean of all during a pause of this worker, or after its end; `step` may use it, too. By default
        the result of `consensus` if replicas meet in means, else None.
        """
        return self.consensus(worker) if self._meets_in_means else None

    def apply(self, worker: Worker, result: Mean) -> None:
        """Apply a mean in which this worker took part without a step; not called if all weights were 0.

        By default: under rounds one step of the user's optimizer; if replicas meet in means of all, the mean is written
        into the model. `step` may use it, too.
        """
        if self.meets == "rounds":
            worker.update(result.mean, options=result.options)
        elif self._meets_in_means:
            worker.parameters = result.mean

    def pause(self, worker: Worker) -> None:  # noqa: B027
        """Run the collectives that are left, the same on every worker; called when all have paused or ended.

        `worker.neighbours.late()` returns the vectors of exchanges in which this worker took no part.
        """

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        """Return the parameters of this replica for the mean of all replicas, and their weight.

        Evaluations, the end, and copies of replicas use that mean. By default the model's parameters, with weight 1.
        """
        return worker.parameters, 1.0

    def restored(self, worker: Worker, at: Flat | None) -> None:  # noqa: B027
        """Go on from parameters that no step of this worker has made.

        Args:
            at: None: the model and `worker.state` are those of a checkpoint, or `start` has made them again. Otherwise
                the consensus of all workers, in a copy of a replica, or as the script has changed it inside
                `world.evaluate()`. The model has it if replicas are equal or meet, and the change if they differ.
        """

    def drain(self, worker: Worker) -> None:  # noqa: B027
        """Wait for all that this strategy has in flight; called before a pause of this worker, and at its end."""

    def finish(self, worker: Worker) -> None:  # noqa: B027
        """Release what is held for other workers; called when all have ended and all replicas are equal."""


def is_gossip(strategy: Strategy) -> bool:
    """Return whether a step meets single workers."""
    return strategy.meets in ("neighbours", "asks")


def steps_apart(strategy: Strategy) -> bool:
    """Return whether no step brings all workers together, nor a quorum of them."""
    return is_gossip(strategy) or strategy.meets in ("servers", "nobody")


def copies_buffers(strategy: Strategy) -> bool:
    """Return whether workers get rank 0's forward buffers in each step."""
    return strategy.buffers == "rank0-each-step"


def sparse_gradients_of(strategy: Strategy) -> Literal["rows", "changes", "both", "local", "refused"]:
    """Return the exchange of tables whose gradients are sparse (`Embedding(sparse=True)`).

    "rows": the rows that a step has touched are exchanged. "local": only the worker's own optimizer gets such
    gradients, and the parameters are exchanged in full. "changes": the same, but only those rows of such tables
    that steps have touched since the newest mean. "both": rows in synchronous steps, and changes once steps are local.
    "refused": vectors of gradients are formed, which have no sparse numbers.
    """
    if strategy._sparse_gradients is not None:
        return strategy._sparse_gradients
    is_synchronous = strategy.agrees_in_backward and getattr(strategy, "after", None) != 0
    return "refused" if is_synchronous or strategy.replicas == "equal" else "local"


def buffers_at_pauses(strategy: Strategy) -> Literal["none", "mean", "rank0"]:
    """Return what all buffers become at pauses of all workers."""
    return "rank0" if strategy.buffers == "rank0-each-step" else strategy.buffers
