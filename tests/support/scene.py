"""One scene for all tests: workers that train a small model under a strategy, virtual ones or real processes."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.observe.step_times import Timing
from quorate.records.records import Recorder, records_of
from quorate.rounds.buffer import Ledger
from quorate.rounds.log import Round
from quorate.wire import current
from quorate.wire.virtual.world import Outcome, VirtualWorld
from tests.support.every_strategy import OF_FEW_STEPS, optimizer_of
from tests.support.faulty import Fault, Faulty
from tests.support.joined import joined
from tests.support.pending import pending_weight
from tests.support.processes import run_real_world

T = TypeVar("T")

NEVER = 1 << 40
Model = tuple[int, ...] | Callable[[], nn.Module]
Hook = Callable[["Trainer"], object]


def nothing(trainer: Trainer) -> None:
    """Do nothing at this point of a step."""


def fail(sentence: str) -> None:
    """Nothing is to be told of a checkpoint."""
    raise AssertionError(sentence)


def as_it_is(wire: Wire) -> Wire:
    """Return the wire; a function that processes can be given."""
    return wire


def pause(trainer: Trainer) -> None:
    """Meet all workers in an evaluation."""
    with trainer.world.evaluate():
        pass


def note(trainer: Trainer) -> None:
    """Keep the parameters in what is seen."""
    trainer.seen.append(trainer.parameters)


def flat(tensors: Any) -> Tensor:
    """Return tensors, or the parameters of a module, behind one another, on the CPU."""
    tensors = tensors.parameters() if isinstance(tensors, nn.Module) else tensors
    return torch.cat([x.detach().reshape(-1).cpu() for x in tensors])


def net(*widths: int, seed: int | None = 0) -> nn.Module:
    """Return linear layers of these widths with `Tanh` between them; one layer is a plain `Linear`."""
    if seed is not None:
        torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for width, following in itertools.pairwise(widths):
        layers += [nn.Tanh()] * bool(layers) + [nn.Linear(width, following)]
    return nn.Sequential(*layers) if len(layers) > 1 else layers[0]


def zeros(inputs: int = 1, outputs: int = 1, value: float = 0.0) -> Callable[[], nn.Module]:
    """Make a linear layer without bias whose weights are all `value`."""
    return partial(_constant, inputs, outputs, value)


def _constant(inputs: int, outputs: int, value: float) -> nn.Module:
    model = nn.Linear(inputs, outputs, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def regression(trainer: Trainer) -> Tensor:
    """The squared distance of the outputs from the sums of drawn inputs."""
    x = trainer.draw(16)
    return (trainer.model(x) - x.sum(1, keepdim=True)).square().mean()


def fit(trainer: Trainer) -> Tensor:
    """The squared distance of the outputs from the targets of the batch at hand."""
    inputs, targets, *_ = trainer.batch
    return (trainer.model(inputs) - targets).square().mean()


def sums(examples: int, inputs: int = 4, seed: int = 1) -> TensorDataset:
    """Return drawn inputs with their sums as targets."""
    x = torch.randn(examples, inputs, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x.sum(1, keepdim=True))


def squares(trainer: Trainer) -> Tensor:
    """The mean square of the outputs for drawn inputs."""
    return trainer.model(trainer.draw()).square().mean()


def apart(trainer: Trainer) -> Tensor:
    """The squared distance of the outputs from the rank: workers want different parameters."""
    return (trainer.model(trainer.draw()) - trainer.rank).square().mean()


def ones(trainer: Trainer) -> Tensor:
    """The sum of the weights: every gradient is 1."""
    return trainer.model(torch.ones(1, trainer.inputs)).sum()


def ranked(trainer: Trainer) -> Tensor:
    """As `ones`, times the rank and 1 more."""
    return ones(trainer) * (trainer.rank + 1)


def spoiling(wrong: Mapping[int, Callable[[Tensor], Tensor]]) -> Hook:
    """By rank, what becomes of every gradient."""
    return partial(_spoil, wrong)


def _spoil(wrong: Mapping[int, Callable[[Tensor], Tensor]], trainer: Trainer) -> None:
    if trainer.rank in wrong:
        for p in trainer.model.parameters():
            p.register_hook(wrong[trainer.rank])


class Trainer:
    """One worker of a scene: its model, its optimizer, and the steps it makes."""

    def __init__(self, scene: Scene, world: quorate.World, calls: Callable[[], int] = lambda: 0) -> None:
        self.scene, self.world, self.rank = scene, world, world.rank
        self.wire, self.clock = world.wire, world.wire.clock
        self.step, self.began = 0, None
        self.losses, self.times = list[float](), list[float]()
        """The own loss of every step, and when the step ended."""
        self.lengths, self.waits = list[float](), list[float]()
        """How long every step took, pauses and all, and how long the optimizer did."""
        self.seen = list[Any]()
        """For what the hooks of a test note."""
        if scene.seed is not None:
            torch.manual_seed(world.rank if scene.seed == "rank" else int(scene.seed))
        self.model: Any = net(*scene.model, seed=None) if isinstance(scene.model, tuple) else scene.model()
        self.optimizer: Any = quorate.distribute(
            scene.make(self.model.parameters()), self.model, scene.strategy, **scene.settings
        )
        self.worker: Any = self.optimizer.__dict__.get("_quorate_worker")
        self.rounds = list[Round]()
        """Those that this worker has applied."""
        if self.worker is not None and self.worker.has_rounds:
            watch = self.worker._rounds.watch
            noted = watch.note_round
            watch.note_round = lambda round: (self.rounds.append(round), noted(round))
        self.batch: Any = None
        self.loader: Any = None if scene.data is None else quorate.loader(scene.data, **scene.shard)
        scene.begin(self)
        if scene.loads:
            self.began = quorate.load()
            self.step = self.began or 0
        if scene.deaths:
            world.barrier()
            if world.rank in scene.deaths:
                scene.faults[world.rank].at = calls() + scene.deaths[world.rank]

    @property
    def inputs(self) -> int:
        """How many numbers the model takes."""
        return int(next(self.model.parameters()).shape[-1])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's first parameter."""
        return next(self.model.parameters()).dtype

    @property
    def parameters(self) -> Tensor:
        """All of them, flat, as they are now."""
        return flat(self.model).clone()

    @property
    def rate(self) -> float:
        """The rate of the next step."""
        return self.optimizer.param_groups[0]["lr"]

    @property
    def ledger(self) -> Ledger:
        """What its gradients in rounds have come to."""
        return self.worker._rounds.rounds.ledger if self.worker.has_rounds else Ledger()

    @property
    def pending(self) -> float:
        """The weight that waits for a round."""
        return pending_weight(self.worker._rounds.rounds) if self.worker.has_rounds else 0.0

    @property
    def bytes_out(self) -> int:
        """What it has sent so far."""
        return sum(self.worker.timer._meter.bytes_out.values())

    def draw(self, examples: int = 4) -> Tensor:
        """Return normal inputs that depend on rank and step alone."""
        generator = torch.Generator().manual_seed(1000 * self.step + self.rank)
        return torch.randn(examples, self.inputs, generator=generator, dtype=self.dtype)

    def backward(self) -> Tensor | None:
        """Go back through the loss of the scene, if this worker has one now."""
        loss = self.scene.loss(self)
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
            self.losses.append(loss.item())
        return loss

    def make_step(self) -> None:
        """Make one step of the scene."""
        scene = self.scene
        if self.step in scene.rests:
            with self.world.evaluate():
                scene.rest(self)
        if (self.rank, self.step) in scene.skips:
            self.step += 1
            return
        if scene.dies.get(self.rank) == self.step:
            self.wire.crash()  # type: ignore[attr-defined]
        start, pause = self.clock.now(), scene.pause
        self.clock.sleep(pause(self.rank, self.step) if callable(pause) else pause)
        scene.before(self)
        self.optimizer.zero_grad()
        for number in range(0 if scene.closure else scene.passes):
            with self.optimizer.accumulate() if number < scene.passes - 1 else nullcontext():
                self.backward()
        scene.between(self)
        begin = self.clock.now()
        self.optimizer.step(*[self.backward] * scene.closure)
        self.step += 1
        self.times.append(self.clock.now())
        self.waits.append(self.times[-1] - begin)
        self.lengths.append(self.times[-1] - start)
        scene.after(self)
        if self.step in scene.saves:
            quorate.save()

    def train(self, steps: float) -> Trainer:
        """Go on until this worker has made so many steps in all, or the data are at an end."""
        scene = self.scene
        if scene.data is None:
            while self.step < steps:
                self.make_step()
            return self
        for _ in range(self.loader.epoch, scene.epochs):
            self.train_epoch(steps)
            if self.step == steps:
                break
        return self

    def train_epoch(self, steps: float = math.inf) -> int:
        """Go once through the data, or until this worker has made so many steps in all; the number of batches."""
        self.place = -1
        for place, batch in enumerate(self.loader):
            self.place, self.batch = place, batch
            self.make_step()
            if self.step == steps:
                break
        return self.place + 1

    def finish(self) -> Trainer:
        """End the training of this optimizer."""
        self.optimizer.finish()
        if self.scene.records is not None:
            current.here().context(Timing).recorder.close()
        return self


def parameters(trainer: Trainer) -> Tensor:
    """Return its parameters."""
    return trainer.parameters


def loss_in_common(trainer: Trainer) -> float:
    """Return the loss of `regression` on inputs that all workers have in common."""
    x = torch.randn(256, trainer.inputs, generator=torch.Generator().manual_seed(99))
    return (trainer.model(x) - x.sum(1, keepdim=True)).square().mean().item()


def itself(trainer: Trainer) -> Trainer:
    """Return the whole trainer; only a virtual worker's can be handed over."""
    return trainer


@dataclass(init=False)
class Scene:
    """How `size` workers train `model` under a strategy; what a scene has no name for are settings of the strategy.

    `model` are widths of layers, or a function. `steps` may be by rank. Every worker sleeps for `pause` seconds before
    a step, evaluates before those in `rests`, and is gone before the step in `dies`, or after so many calls to its wire
    in `deaths`, counted from the first step; `skips` are pairs of a rank and a step that it leaves out. With `closure`
    the optimizer asks for the loss. Hooks get the `Trainer`: `begin`, and in each step `before`, `between` backward
    pass and step, and `after`; `rest` in evaluations, and `last` before the end. `wraps` makes of its wire what a
    worker sees. With a `root` checkpoints lie there; `saves` are numbers of steps behind which one is made. Workers
    keep `records` in that folder. Strategies that change after a warm-up do so `soon`.
    """

    def __init__(
        self,
        strategy: Any = "all-reduce",
        size: int = 3,
        *,
        model: Model = (4, 1),
        make: Callable[[Any], torch.optim.Optimizer] | None = None,
        rate: float = 0.05,
        heavy: float = 0.0,
        steps: float | Sequence[int] | None = None,
        loss: Callable[[Trainer], Tensor | None] | None = None,
        data: Any = None,
        epochs: int = 1,
        shard: Mapping[str, Any] | None = None,
        passes: int = 1,
        pause: float | Callable[[int, int], float] = 0.0,
        closure: bool = False,
        rests: Collection[int] = (),
        skips: Collection[tuple[int, int]] = (),
        dies: Mapping[int, int] | None = None,
        deaths: Mapping[int, int] | None = None,
        drops: Sequence[Fault] = (),
        wraps: Callable[[Wire], Wire] = as_it_is,
        root: Path | None = None,
        saves: Collection[int] = (),
        loads: bool = False,
        records: Path | None = None,
        begin: Hook = nothing,
        before: Hook = nothing,
        between: Hook = nothing,
        after: Hook = nothing,
        rest: Hook = nothing,
        last: Hook = nothing,
        seed: int | Literal["rank"] | None = 0,
        world: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        soon: bool = True,
        **more: Any,
    ) -> None:
        self.strategy, self.size, self.model, self.seed = strategy, size, model, seed
        self.make = make or partial(optimizer_of, strategy, lr=rate, momentum=heavy)
        self.steps: Any = steps or (6 if data is None else math.inf)
        self.loss = loss or (regression if data is None else fit)
        self.data, self.epochs, self.shard = data, epochs, {"batch_size": 4, "seed": 0, **(shard or {})}
        self.passes, self.pause, self.closure, self.wraps = passes, pause, closure, wraps
        self.skips, self.rests, self.dies, self.deaths, self.drops = skips, rests, dies or {}, deaths or {}, drops
        self.root, self.saves, self.loads, self.records = root, saves, loads, records
        self.begin, self.before, self.between, self.after, self.rest = begin, before, between, after, rest
        self.last = last
        self.world = {"timeout": 120.0, **(world or {})}
        of_few = OF_FEW_STEPS.get(strategy, {}) if soon and isinstance(strategy, str) else {}
        self.settings = {"with_one_worker": "algorithm", **of_few, **(settings or {}), **more}
        self.faults = dict[int, Fault]()

    def trainer(self, world: quorate.World, calls: Callable[[], int] = lambda: 0) -> Trainer:
        """Return the worker of a world that is joined, before its first step."""
        if self.root is not None:
            current.here().context(CheckpointContext).root = self.root
            current.here().context(CheckpointContext).listeners = [fail]
        if self.records is not None:
            current.here().context(Timing).recorder = Recorder(records_of(self.records, world.rank))
        return Trainer(self, world, calls)

    def play(self, world: quorate.World, calls: Callable[[], int] = lambda: 0) -> Trainer:
        """Train to the end in a world that is joined."""
        steps = self.steps[world.rank] if isinstance(self.steps, Sequence) else self.steps
        trainer = self.trainer(world, calls).train(steps)
        self.last(trainer)
        return trainer.finish()

    def outcomes(self, look: Callable[[Trainer], T] = itself) -> list[Outcome[T]]:
        """Return how every virtual worker ended; their errors are not raised."""
        self.stage = VirtualWorld(self.size, **self.world)
        self.faults = {rank: Fault(kind="stop", rank=rank, at=NEVER) for rank in self.deaths}
        faults = [*self.faults.values(), *self.drops]

        def live(wire: Wire) -> T:
            faulty = Faulty(wire, faults)
            play = joined(lambda world: look(self.play(world, lambda: faulty.calls)))
            return play(self.wraps(faulty if faults else wire))

        return self.stage.outcomes(live)

    def run(self, look: Callable[[Trainer], T] = itself, *, real: bool = False) -> list[T]:
        """Return what `look` sees of every worker at the end, by rank; in `real` processes if asked."""
        if real:
            return run_real_world(self.size, partial(played, self, look))
        return VirtualWorld(self.size, **self.world).run(joined(partial(played, self, look)))

    def survivors(self, look: Callable[[Trainer], T] = itself) -> dict[int, T]:
        """Return what `look` sees of the workers that did not die; fails where another ended otherwise than planned."""
        outcomes, ends = self.outcomes(look), dict[int, Any]()
        dead = {rank for rank, fault in self.faults.items() if fault.fired}.union(self.dies)
        for outcome in outcomes:
            if outcome.rank not in dead and outcome.error is not None:
                raise outcome.error
            assert outcome.is_crashed == (outcome.rank in dead), outcome
            if not outcome.is_crashed:
                ends[outcome.rank] = outcome.result
        return ends

    def ends(self, *, real: bool = False) -> list[Tensor]:
        """Return the parameters of every worker at the end, flat."""
        return self.run(parameters, real=real)

    def end(self, *, real: bool = False) -> Tensor:
        """Return the parameters at the end, which are to be the same on all workers."""
        ends = self.ends(real=real)
        assert all(torch.equal(end, ends[0]) for end in ends)
        return ends[0]

    def but(self, **changes: Any) -> Scene:
        """Return the same scene with other values of these fields."""
        other = copy.copy(self)
        for name, value in changes.items():
            assert hasattr(other, name), name
            setattr(other, name, value)
        return other

    def resumed(
        self, folder: Path, saves: int, cut: int, look: Callable[[Trainer], T] = parameters, *, alike: bool = False
    ) -> tuple[list[T], list[T]]:
        """Return what is seen at the end of an unbroken training, and of one that ended after `cut` steps and went on
        from the checkpoint of step `saves`; with `alike` the unbroken one saves there as well."""
        kept = self.but(root=folder / "kept", saves=[saves])
        whole = kept.but(root=folder / "whole", saves=kept.saves if alike else ()).run(look)
        kept.but(steps=cut).run(look)
        return whole, kept.but(loads=True).run(look)

    def refusal(self) -> str:
        """Return the sentence in which all workers refuse to begin."""

        def script(world: quorate.World) -> str:
            with pytest.raises(ConfigurationError) as refused:
                self.trainer(world)
            return str(refused.value)

        (sentence,) = set(virtual(self.size, script, **self.world))
        return sentence

    def act(self, script: Callable[[Trainer], T]) -> list[T]:
        """Return what a `script` of one's own makes of every virtual worker; nobody finishes."""
        return virtual(self.size, lambda world: script(self.trainer(world)), **self.world)


def played(scene: Scene, look: Callable[[Trainer], T], world: quorate.World) -> T:
    """Return what `look` sees after a training in a world that is joined."""
    return look(scene.play(world))


def virtual(size: int, task: Callable[[quorate.World], T], **world: Any) -> list[T]:
    """Return what `task` does in each worker of a virtual world, which it has joined and leaves well."""
    return VirtualWorld(size, **world).run(joined(task))
