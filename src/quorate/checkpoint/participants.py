"""What a checkpoint is of: everything that was distributed, the loaders, and the objects a script has given besides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch.nn import Module, Parameter
from torch.optim import Optimizer

from quorate.core.errors import ConfigurationError
from quorate.core.means import WorkerRounds
from quorate.core.strategy import Strategy, Worker
from quorate.observe.step_times import timing
from quorate.replica.replica import Replica
from quorate.rounds.terms import Agreed
from quorate.sharding.mesh import Seat
from quorate.sharding.stages.pipeline import Pipeline
from quorate.wire.current import Place


class KeptRounds(WorkerRounds, Protocol):
    """The rounds of one optimizer, as checkpoints see them."""

    @property
    def version(self) -> int:
        """The newest round this replica has applied."""

    @property
    def agreed(self) -> Agreed:
        """The settings in force."""

    def ask_for_save(self, request: int) -> None:
        """Let a round be marked after which every worker saves; `request` grows from one to the next."""

    def kept(self) -> dict[str, Any]:
        """What a checkpoint holds of this worker's rounds, as they are after the newest round that was applied."""

    def restore(self, olds: Sequence[dict[str, Any]]) -> list[str]:
        """Go on from what the workers of a checkpoint have kept, by rank; returns what is to be said about it."""


class Participant(Worker, Protocol):
    """One optimizer's worker, as checkpoints, and copies of its replica, see it."""

    name: str
    """The name of the optimizer's channel."""
    strategy: Strategy
    updates: int
    """That its replica has applied."""
    finished: bool
    differs: bool
    """Whether replicas differ between steps."""

    @property
    def replica(self) -> Replica: ...

    @property
    def reducer_state(self) -> Any:
        """The state of the reducer of its means: see `means.reducer.Reducer.state`."""

    @property
    def has_rounds(self) -> bool:
        """Whether its strategy has agreed on rounds."""

    @property
    def rounds(self) -> KeptRounds:
        """Its rounds, where it has."""


@dataclass
class Entered:
    """Of the worker whose replica it has copied."""

    extras: dict[str, Any]
    """States, by name."""
    step: int
    options: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The options of the parameter groups, by the optimizer's name."""


@dataclass(eq=False)
class Distributed:
    """One optimizer as it was given to `distribute`."""

    name: str
    """Of its channel."""
    optimizer: Optimizer
    model: Module
    strategy: str | None
    settings: Mapping[str, object]
    worker: Participant | None = None
    """None where nobody has to agree, or somebody else sees to it."""
    pause: Callable[[], None] = lambda: None
    """Waits until no worker steps, with nothing in flight."""
    resume: Callable[[], None] = lambda: None
    """Goes on."""
    ahead: Callable[[], AbstractContextManager[None]] = nullcontext
    """Inside, parameters are those after every step, where the newest one is still under way."""
    steps: int = 0
    """Counted by a hook, where there is no worker."""
    seat: Seat | None = None
    """This worker's among those that hold the model together; None where it holds it alone."""
    pipeline: Pipeline | None = None
    """Where this worker has some of the model's stages."""
    owned: Callable[[], Collection[int]] | None = None
    """The numbers of the parameters of which the optimizer's state lies here, whole; None where it has a piece of each,
    or all."""

    @property
    def step(self) -> int:
        """How many steps this worker has made."""
        return self.steps if self.worker is None else self.worker.step

    @property
    def shard(self) -> tuple[int, int]:
        """Of how many shards, or parts of these, over all stages, the model is, and which one is here."""
        if self.seat is None:
            return 1, 0
        axes = self.seat.axes
        return axes.of_replica, (self.seat.stage * axes.shards + self.seat.shard) * axes.tensor + self.seat.part

    @property
    def parts(self) -> int:
        """How many workers compute its layers together."""
        return 1 if self.seat is None else self.seat.axes.tensor

    @property
    def reads(self) -> tuple[int, int]:
        """As which shard of how many it reads its stages in a checkpoint: whole, where it takes parts of layers out."""
        return (1, 0) if self.parts > 1 or self.seat is None else (self.seat.axes.shards, self.seat.shard)

    @property
    def stage(self) -> int:
        """The place of this worker in the model's pipeline."""
        return 0 if self.seat is None else self.seat.stage

    @property
    def stages(self) -> list[list[str]]:
        """What each worker of the pipeline has: modules and parameters, by name; empty for a model that has none."""
        return [] if self.pipeline is None else self.pipeline.ending.cut

    @property
    def elsewhere(self) -> Collection[str]:
        """What of the model's state belongs to other workers of the pipeline, by name."""
        return frozenset() if self.pipeline is None else self.pipeline.ending.elsewhere

    @property
    def parameters(self) -> list[Parameter]:
        """The optimizer's, in its order."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    @property
    def is_apart(self) -> bool:
        """Whether replicas differ between steps."""
        return self.worker is not None and self.worker.differs

    @property
    def is_shared(self) -> bool:
        """Whether all workers have one replica in common."""
        return self.worker is not None and self.worker.strategy.replicas == "shared"

    @property
    def is_in_rounds(self) -> bool:
        """Whether it agrees in rounds, and still does."""
        return self.worker is not None and self.worker.has_rounds and not self.worker.finished

    def stepped(self, *_: Any) -> None:
        """What a hook calls, where there is no worker that counts."""
        self.steps += 1


def by_name(name: str) -> tuple[int, str]:
    """Sorts the names of optimizers into one order on all workers, which distribute them in any order."""
    return len(name), name


@dataclass
class Trained:
    """All of one worker."""

    optimizers: dict[str, Distributed] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)
    entered: Entered | None = None
    """What a worker that joined was given for its `load`."""
    leading: Participant | None = None
    """The worker of the first optimizer in order, whose exchanges count checkpoints."""
    missing: tuple[str, ...] = ()
    """The names of the optimizers that a worker that joins has to distribute before it enters."""

    def check_entered(self) -> None:
        """Raise `ConfigurationError` for a worker that joins with fewer optimizers than the others have."""
        if self.missing:
            raise ConfigurationError(
                f"the workers that this one joins have distributed {self._all_of_others()} optimizers, and this one "
                f"only {len(self.optimizers)}; run the same script, and call quorate.distribute for each of them "
                "before the first step"
            )

    def _all_of_others(self) -> int:
        return len(self.optimizers.keys() | set(self.missing))

    def add(self, one: Distributed) -> None:
        """Another optimizer was distributed."""
        self.optimizers[one.name] = one
        self.leading = self.ordered[0].worker
        if one.worker is None:
            one.optimizer.register_step_post_hook(one.stepped)

    @property
    def ordered(self) -> list[Distributed]:
        """The optimizers in an order that is the same on all workers."""
        return sorted(self.optimizers.values(), key=lambda one: by_name(one.name))

    @property
    def first(self) -> Distributed:
        """The one whose steps count."""
        return next(iter(self.optimizers.values()))

    def add_extras(self, extras: Mapping[str, Any]) -> None:
        """Objects that a checkpoint holds as well. Raises `ConfigurationError` for one that has no state to give."""
        for name, thing in extras.items():
            if isinstance(thing, type) or not (
                callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))
            ):
                kind = f"the class {thing.__name__}" if isinstance(thing, type) else f"a {type(thing).__name__}"
                raise ConfigurationError(
                    f"{name} is {kind}, and what is kept in a checkpoint has state_dict() and "
                    "load_state_dict(), as schedulers and scalers do; the model and the optimizer are kept anyway"
                )
        self.extras.update(extras)


def trained(place: Place) -> Trained:
    """Of the worker of `place`."""
    return place.context(Trained)


def set_steps(place: Place, one: Distributed, step: int, rounds: int) -> None:
    """Go on counting from here, also in the records."""
    one.steps = step
    if one.worker is not None:
        one.worker.step = step
    for timer in timing(place).timers:
        if timer.name == one.name:
            timer.steps, timer.rounds = step, rounds
            timer.set_out_again()


@dataclass
class CheckpointContext:
    """Where one worker's checkpoints are, and who is told of them; `checkpoint_context(place)` gives it."""

    root: Path | None = None
    """The folder in which this run's checkpoints are."""
    tell: Callable[[str], None] | None = None
    """Shows a sentence to the user; None where the script keeps no checkpoints."""
    loads: int = 0
    """How often a checkpoint was looked for."""


def checkpoint_context(place: Place) -> CheckpointContext:
    """That of the worker."""
    return place.context(CheckpointContext)
