"""One short training of a combination of choices, as every worker of it runs: four steps, a pause, and a checkpoint."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.launch.takeover.wrapper import DistributedDataParallel
from quorate.train.chosen import Chosen
from quorate.wire import current
from tests.compatibility.models import (
    LENGTH,
    OUTPUTS,
    ROWS,
    WIDTH,
    has_positions,
    in_mesh,
    inner,
    loss_of,
    model_of,
    optimizer_for,
)
from tests.support.pending import pending_weight

BATCH, EPOCHS, STEPS = 4, 2, 2
PACE = 0.01
"""Seconds of the virtual clock between the steps of rank 0; rank r takes r + 1 times as long, unless a worker joins."""


@dataclass
class End:
    """The end of the training on one worker, and its state at the pause between the epochs."""

    paused: list[Tensor] = field(default_factory=list)
    """Parameters and buffers in the pause, or after the load of a checkpoint of it."""
    last: list[Tensor] = field(default_factory=list)
    start: list[Tensor] = field(default_factory=list)
    produced: float = 0.0
    """The weight of the gradients for rounds, and the weight that rounds took, that was lost, and that is left."""
    accounted: float = 0.0
    steps: int = 0
    began: int = 0
    """The epoch in which the training began."""
    phase: str = "distribute"
    """The phase in which the error was raised: "distribute", "first step", "later"."""


class BegunError(Exception):
    """Ends a worker of a training that only begins."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One combination; each field is a part that a `Choice` may change."""

    strategy: str = "all-reduce"
    settings: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "SGD"
    momentum: float = 0.0
    loop: str = ""
    ends: str = ""
    """"dies": the last worker dies in the second epoch; "joins": one more worker joins in it."""
    clients: bool = False
    shrink: str = ""
    attention: str = ""
    is_of_ddp: bool = False
    is_alike: bool = False
    """Whether all workers compute the same batches."""
    mesh: str = ""
    world: str = "virtual"
    only_begins: bool = False
    """Whether it ends before the first step."""

    @property
    def is_virtual(self) -> bool:
        """Whether virtual workers can play it."""
        return self.world == "virtual" and not self.mesh

    def run(self, world: quorate.World, root: Path | None, *, loads: bool = False) -> End:
        """Train in a world that is joined; the error of a worker has its end as the attribute `end`."""
        worker = Worker(self, world)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                worker.train(root, loads=loads)
        except Exception as error:
            error.end = worker.end  # type: ignore[attr-defined]
            raise
        return worker.end


class Worker:
    """One worker of a training."""

    def __init__(self, training: Training, world: quorate.World) -> None:
        torch.set_num_threads(1)
        self.training, self.world, self.end = training, world, End()
        self.models: list[Any] = []
        self.optimizers: list[Any] = []
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if training.loop == "GradScaler" else None
        self.pruning: Any = None

    def train(self, root: Path | None, *, loads: bool) -> None:
        """Train; save between the two epochs, or begin there."""
        training, end = self.training, self.end
        if root is not None:
            context = current.here().context(CheckpointContext)
            context.root, context.listeners = root, [lambda sentence: None]
        torch.default_generator.manual_seed(self.world.rank)  # a call for all devices takes a millisecond
        self._distribute()
        loader = self._loader()
        if not training.is_of_ddp:  # which distributes in the first forward pass
            end.phase = "first step"
        if training.only_begins:
            raise BegunError
        end.start = self._numbers()
        if loads:
            quorate.load()
        end.began = loader.epoch
        for epoch in range(loader.epoch, EPOCHS):
            if epoch and not (self.world.wire.is_newcomer and epoch == end.began):
                self._pause(saves=root is not None and not loads)
            if training.loop == "frozen layers":
                inner(self.models[0]).first.requires_grad_(epoch > 0)  # a model is built as it was saved
            for place, (x, y) in enumerate(loader):
                is_last = self.world.rank == self.world.size - 1
                if training.ends == "dies" and is_last and (epoch, place) == (EPOCHS - 1, 1):
                    self._crash()
                if training.is_virtual:
                    self.world.wire.clock.sleep(PACE * (1 if training.ends == "joins" else 1 + self.world.rank))
                self._step(x, y)
                end.steps += 1
                end.phase = "later"
        for optimizer in self.optimizers:
            optimizer.finish()
        end.last = self._numbers()
        for optimizer in self.optimizers:
            self._account(optimizer)

    def _crash(self) -> None:
        if self.training.is_virtual:
            self.world.wire.crash()  # type: ignore[attr-defined]
        os.kill(os.getpid(), signal.SIGKILL)

    def _distribute(self) -> None:
        training = self.training
        sizes = 2 if training.loop == "several models" else 1
        for number in range(sizes):
            model: Any = model_of(training)
            if training.mesh:
                model = in_mesh(model, training, self.world)
            plain = optimizer_for(training, model)
            if training.loop == "frozen layers":
                model.first.requires_grad_(False)
            settings = {"with_one_worker": "algorithm", **training.settings}
            if sizes > 1:
                settings["name"] = f"model {number}"
            if training.is_of_ddp:
                chosen = current.here().context(Chosen)
                chosen.strategy_name, chosen.settings = training.strategy, training.settings
                optimizer: Any = plain
                model = DistributedDataParallel(model)
            else:
                optimizer = quorate.distribute(plain, model, training.strategy, **settings)
            self.models.append(model)
            self.optimizers.append(optimizer)
        optimizer = self.optimizers[0]
        if training.shrink == "prune":
            cubic = quorate.shrink.Cubic(begin=2, steps=1, every=1, initial=0.5)
            self.pruning = quorate.shrink.prune(optimizer, amount=0.5, schedule=cubic)
        if training.shrink == "low_rank":
            quorate.shrink.low_rank(optimizer, rank=2, layers=["middle"], at=STEPS + 1)
        if training.shrink == "cluster":
            quorate.shrink.cluster(optimizer, 4, layers=["middle"])

    def _loader(self) -> Any:
        training = self.training
        draw = torch.Generator().manual_seed(7)
        examples = BATCH * STEPS * self.world.size
        shape = (examples, LENGTH, WIDTH) if has_positions(training) else (examples, WIDTH)
        y = torch.randn(examples, OUTPUTS, generator=draw)
        is_of_rows = training.optimizer == "sparse gradients"
        x = torch.randint(ROWS, shape[:-1], generator=draw) if is_of_rows else torch.randn(shape, generator=draw)
        data = TensorDataset(x, y)
        if training.is_alike:
            data = TensorDataset(*(z[:1].repeat(examples, *[1] * (z.dim() - 1)) for z in (x, y)))
        if training.is_of_ddp:
            return OwnBatches(data, self.world)
        if training.clients:
            return quorate.loader(data, BATCH, partition="iid", clients=2 * self.world.size)
        return quorate.loader(data, BATCH)

    def _pause(self, *, saves: bool) -> None:
        if saves and not self.training.is_of_ddp:
            quorate.save(best=1.0)  # now, under rounds, too
        with self.world.evaluate():
            self.end.paused = self._numbers()

    def _numbers(self) -> list[Tensor]:
        """Return the parameters and buffers of this worker, or of its piece of the model."""
        numbers = [x for model in self.models for x in (*inner(model).parameters(), *inner(model).buffers())]
        return [(x.to_local() if hasattr(x, "to_local") else x).detach().clone() for x in numbers]

    def _step(self, x: Tensor, y: Tensor) -> None:
        parts = list(zip(x.tensor_split(2), y.tensor_split(2), strict=True))
        parts = parts if self.training.loop == "accumulation" else [(x, y)]
        for number, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            optimizer.zero_grad()
            if self.training.loop == "closure" or self.training.optimizer == "LBFGS":
                backward = partial(self._closure, model, optimizer, x, y)
                if self.scaler is None:
                    optimizer.step(backward)
                else:
                    self.scaler.step(optimizer, backward)
                continue
            for part, (inputs, targets) in enumerate(parts):
                with self._accumulates(model, optimizer) if part < len(parts) - 1 else nullcontext():
                    self._backward(model, inputs, targets, number)
            if self.scaler is not None:
                self.scaler.unscale_(optimizer)
            if self.training.loop == "clipping":
                nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.1)
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
                self.scaler.update()
        if self.pruning is not None:
            self.pruning.step()

    def _accumulates(self, model: Any, optimizer: Any) -> Any:
        return model.no_sync() if self.training.is_of_ddp else optimizer.accumulate()

    def _closure(self, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        return self._backward(model, x, y, 0)

    def _backward(self, model: Any, x: Tensor, y: Tensor, number: int) -> Tensor:
        loss: Tensor = loss_of(model, x, y + number, self.training)
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        return loss

    def _account(self, optimizer: Any) -> None:
        """Add the weights that a ledger of rounds has, and those that it accounts for."""
        worker = optimizer.__dict__.get("_quorate_worker")
        if worker is not None and getattr(worker, "has_rounds", False):
            rounds = worker._rounds.rounds
            self.end.produced += rounds.ledger.produced
            self.end.accounted += rounds.ledger.taken + rounds.ledger.lost + pending_weight(rounds)


class OwnBatches:
    """The batches of a script that assigns them itself, by `DistributedSampler`."""

    epoch = 0

    def __init__(self, data: TensorDataset, world: quorate.World) -> None:
        sampler = DistributedSampler(data, world.size, world.rank, shuffle=False)
        self._loader = DataLoader(data, BATCH, sampler=sampler)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)
