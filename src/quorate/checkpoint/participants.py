"""The contents of a checkpoint: every distributed optimizer, the loaders, and objects that a script passes besides."""

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
from quorate.observe.step_times import Timing
from quorate.replica.replica import Replica
from quorate.rounds.terms import Agreed
from quorate.sharding.mesh import Coordinates
from quorate.sharding.stages.pipeline import Pipeline


class KeptRounds(WorkerRounds, Protocol):
    """The rounds of one optimizer, as checkpoints see them."""

    @property
    def version(self) -> int:
        """The newest round that this replica has applied."""

    @property
    def agreed(self) -> Agreed:
        """The settings in force."""

    def ask_for_save(self, request: int) -> None:
        """Let a round be marked after which every worker saves; `request` grows from one to the next."""

    def kept(self) -> dict[str, Any]:
        """Return this worker's rounds for a checkpoint, as they are after the newest round that was applied."""

    def restore(self, olds: Sequence[dict[str, Any]], steps: float) -> list[str]:
        """Continue from the rounds of a checkpoint's workers, by rank; return sentences about it. Without any, begin
        after so many `steps`, from which schedulers go on."""


class Participant(Worker, Protocol):
    """One optimizer's worker, as checkpoints, and copies of its replica, see it."""

    name: str
    """The name of the optimizer's channel."""
    strategy: Strategy
    updates: int
    """Updates that its replica has applied."""
    finished: bool
    differs: bool
    """Whether replicas differ between steps."""

    @property
    def replica(self) -> Replica: ...

    @property
    def updates_at_pause(self) -> int:
        """The updates after the newest pause of all workers, or in a checkpoint."""

    @property
    def reducer_state(self) -> Any:
        """The state of the reducer of its means: see `means.reducer.Reducer.state`."""

    @property
    def next_weight(self) -> float:
        """The weight of the gradient that the next backward pass forms."""

    @property
    def is_edited(self) -> bool:
        """Whether the script has edited the replica, and neither a step nor a pause has counted that."""

    def as_edited(self) -> AbstractContextManager[None]:
        """Inside, parameters are as the script has edited them, where a pause in progress has moved them since."""

    def resumed(self, *, is_edited: bool) -> None:
        """Go on from the numbers of a checkpoint, which are in the replica and in the state; see `is_edited`."""

    def masked(self) -> None:
        """Restart the strategy with the masks of the optimizer as they are now; no message is under way."""

    @property
    def has_rounds(self) -> bool:
        """Whether its strategy agrees in rounds."""

    @property
    def rounds(self) -> KeptRounds:
        """Its rounds, if it has any."""


@dataclass
class Entered:
    """State of the worker whose replica a joining worker has copied."""

    extras: dict[str, Any]
    step: int
    options: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The options of the parameter groups, by the optimizer's name."""


@dataclass(eq=False)
class Distributed:
    """One optimizer that was passed to `distribute`."""

    name: str
    optimizer: Optimizer
    model: Module
    strategy: str | None
    settings: Mapping[str, object]
    worker: Participant | None = None
    """None where workers need not agree, or another library does it."""
    pause: Callable[[], None] = lambda: None
    """Waits until no worker steps, with nothing in flight."""
    resume: Callable[[], None] = lambda: None
    laid_out: Callable[[], None] = lambda: None
    """Continues with the parameters that the optimizer has now, after others have taken their places."""
    ahead: Callable[[], AbstractContextManager[None]] = nullcontext
    """Inside, parameters are those after every step, where the newest one is still in progress."""
    steps: int = 0
    """Counted by a hook, where there is no worker."""
    coordinates: Coordinates | None = None
    """This worker's coordinates among those that hold the model together; None where it holds all of it."""
    pipeline: Pipeline | None = None
    """Set where this worker has some of the model's stages."""
    owned: Callable[[], Collection[int]] | None = None
    """Returns indices of the parameters whose full optimizer state lies here; None where pieces of all, or all, do."""

    @property
    def step(self) -> int:
        """The number of steps that this worker has made."""
        return self.steps if self.worker is None else self.worker.step

    @property
    def shard(self) -> tuple[int, int]:
        """The number of shards (or tensor parts) of the model, over all stages, and the index of this one."""
        if self.coordinates is None:
            return 1, 0
        return self.coordinates.axes.of_replica, self.coordinates.in_replica

    @property
    def parts(self) -> int:
        """How many workers compute its layers together."""
        return 1 if self.coordinates is None else self.coordinates.axes.tensor

    @property
    def reads(self) -> tuple[int, int]:
        """The number of shards and the shard for reading a checkpoint; (1, 0) where parts of layers are taken from
        full ones."""
        if self.parts > 1 or self.coordinates is None:
            return 1, 0
        return self.coordinates.axes.shards, self.coordinates.shard

    @property
    def stage(self) -> int:
        """The place of this worker in the model's pipeline."""
        return 0 if self.coordinates is None else self.coordinates.stage

    @property
    def stages(self) -> list[list[str]]:
        """The modules and parameters of each worker of the pipeline, by name; empty without stages."""
        return [] if self.pipeline is None else self.pipeline.ending.cut

    @property
    def elsewhere(self) -> Collection[str]:
        """The names in the model's state that other workers of the pipeline hold."""
        return frozenset() if self.pipeline is None else self.pipeline.ending.elsewhere

    @property
    def parameters(self) -> list[Parameter]:
        """The optimizer's parameters, in its order."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    @property
    def is_apart(self) -> bool:
        """Whether replicas differ between steps."""
        return self.worker is not None and self.worker.differs

    @property
    def is_shared(self) -> bool:
        """Whether all workers share one replica."""
        return self.worker is not None and self.worker.strategy.replicas == "shared"

    @property
    def is_in_rounds(self) -> bool:
        """Whether it agrees in rounds, and has not finished."""
        return self.worker is not None and self.worker.has_rounds and not self.worker.finished

    def stepped(self, *_: Any) -> None:
        """Count a step, as a hook, where no worker counts."""
        self.steps += 1


def by_name(name: str) -> tuple[int, str]:
    """Return a key that sorts optimizers by name into one order on all workers, which distribute them in any order."""
    return len(name), name


@dataclass
class Trained:
    """The distributed optimizers of one worker."""

    optimizers: dict[str, Distributed] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)
    entered: Entered | None = None
    """The state that a joined worker has received for its `load`."""
    leading: Participant | None = None
    """The worker of the first optimizer in order, whose exchanges count checkpoints."""
    missing: tuple[str, ...] = ()
    """The names of the optimizers that a joining worker must distribute before it enters."""

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

    def add(self, entry: Distributed) -> None:
        """Register another distributed optimizer."""
        self.optimizers[entry.name] = entry
        self.leading = self.ordered[0].worker
        if entry.worker is None:
            entry.optimizer.register_step_post_hook(entry.stepped)

    @property
    def ordered(self) -> list[Distributed]:
        """The optimizers in an order that is the same on all workers."""
        return sorted(self.optimizers.values(), key=lambda entry: by_name(entry.name))

    @property
    def first(self) -> Distributed:
        """The optimizer whose steps count."""
        return next(iter(self.optimizers.values()))

    def add_extras(self, extras: Mapping[str, Any]) -> None:
        """Add objects that a checkpoint holds as well. Raises `ConfigurationError` for one without a state."""
        for name, thing in extras.items():
            if isinstance(thing, type) or not (
                callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))
            ):
                kind = (
                    f"the class {thing.__name__}" if isinstance(thing, type) else f"of the type {type(thing).__name__}"
                )
                raise ConfigurationError(
                    f"{name} is {kind}, and what is kept in a checkpoint has state_dict() and "
                    "load_state_dict(), as schedulers and scalers do; the model and the optimizer are kept anyway"
                )
        self.extras.update(extras)


def set_steps(timing: Timing, entry: Distributed, step: int, rounds: int) -> None:
    """Continue counting from here, also in the records."""
    entry.steps = step
    if entry.worker is not None:
        entry.worker.step = step
    for timer in timing.timers:
        if timer.name == entry.name:
            timer.steps, timer.rounds = step, rounds
            timer.set_out_again()


@dataclass
class CheckpointContext:
    """The place of one worker's checkpoints, and its messages."""

    root: Path | None = None
    """The folder of this run's checkpoints."""
    listeners: list[Callable[[str], None]] = field(default_factory=list)
    """Called, in order, with each sentence for the user; none where the script keeps no checkpoints."""
    loads: int = 0

    def tell(self, sentence: str) -> None:
        """Show a sentence to the user."""
        for listener in self.listeners:
            listener(sentence)
