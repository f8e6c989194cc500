"""One training by a loop of its own and inside another library's, on all workers; run as a script with its name.

The first worker prints a line for each case: the case, and the parameters of every worker after either of them, and
before.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import quorate

EPOCHS, BATCH, EXAMPLES = 2, 4, 64


@dataclass(frozen=True)
class Case:
    """What is done beside forward, backward and step."""

    strategy: str = "all-reduce"
    settings: dict[str, Any] = field(default_factory=dict)
    batches: int = 1
    """To a step."""
    clip: float | None = None
    is_scaled: bool = False
    """By a GradScaler; one example then has no finite loss."""
    ends_early: bool = False
    """All workers but the first end an epoch before it."""

    def scaler(self) -> Any:
        return torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3) if self.is_scaled else None


CASES = {
    "clipped": Case(clip=0.5),
    "several batches": Case(batches=2, clip=0.5),
    "local steps": Case("local-sgd", {"sync_every": 3}, clip=0.5),
    "scaled": Case(is_scaled=True),
    "scaled and clipped": Case(is_scaled=True, clip=0.5),
    "early ends": Case(ends_early=True),
    "solo": Case("eager-solo"),
}


@dataclass
class Training:
    """One that is about to begin."""

    model: Any
    optimizer: Any
    schedule: Any
    loader: Any
    case: Case
    rank: int
    scaler: Any

    @property
    def epochs(self) -> int:
        return EPOCHS - (self.case.ends_early and self.rank > 0)


def by_hand(it: Training) -> None:
    for _ in range(it.epochs):
        for number, (x, y) in enumerate(it.loader, 1):
            with torch.autocast("cpu", torch.float16) if it.scaler else nullcontext():
                loss = mse_loss(it.model(x), y) / it.case.batches
            (it.scaler.scale(loss) if it.scaler else loss).backward()
            if number % it.case.batches:
                continue
            if it.scaler and it.case.clip is not None:
                it.scaler.unscale_(it.optimizer)
            if it.case.clip is not None:
                nn.utils.clip_grad_norm_(it.model.parameters(), it.case.clip)
            if it.scaler:
                it.scaler.step(it.optimizer)
                it.scaler.update()
            else:
                it.optimizer.step()
            it.schedule.step()
            it.optimizer.zero_grad()
    it.optimizer.finish()


def in_fabric(it: Training) -> None:
    from lightning import Fabric
    from lightning.fabric.plugins.precision import MixedPrecision

    plugins = [MixedPrecision("16-mixed", "cpu", it.scaler)] if it.scaler else []
    fabric = Fabric(accelerator="cpu", devices=1, plugins=plugins)
    model, optimizer = fabric.setup(it.model, it.optimizer)
    for _ in range(it.epochs):
        for number, (x, y) in enumerate(it.loader, 1):
            steps_now = number % it.case.batches == 0
            with nullcontext() if steps_now else optimizer.accumulate():
                fabric.backward(mse_loss(model(x), y) / it.case.batches)
            if steps_now:
                if it.case.clip is not None:
                    fabric.clip_gradients(model, optimizer, max_norm=it.case.clip)
                optimizer.step()
                it.schedule.step()
                optimizer.zero_grad()
    optimizer.finish()


def in_lightning(it: Training) -> None:
    import lightning
    from lightning.pytorch.plugins.precision import MixedPrecision

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = it.model

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, y = batch
            return mse_loss(self.net(x), y)

        def configure_optimizers(self) -> Any:
            return {"optimizer": it.optimizer, "lr_scheduler": {"scheduler": it.schedule, "interval": "step"}}

        def on_train_end(self) -> None:
            it.optimizer.finish()

    told = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=it.epochs,
        accumulate_grad_batches=it.case.batches,
        gradient_clip_val=it.case.clip,
        plugins=[MixedPrecision("16-mixed", "cpu", it.scaler)] if it.scaler else [],
        **told,
    )
    trainer.fit(Module(), it.loader)


def in_accelerate(it: Training) -> None:
    from accelerate import Accelerator, DistributedType, PartialState
    from accelerate.optimizer import AcceleratedOptimizer

    alone = PartialState(cpu=True)
    alone.distributed_type, alone.num_processes, alone.process_index = DistributedType.NO, 1, it.rank
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=it.case.batches)
    model, optimizer, schedule = accelerator.prepare(it.model, it.optimizer, it.schedule)
    if it.scaler:  # the Accelerator itself makes one on GPUs only
        accelerator.scaler, optimizer = it.scaler, AcceleratedOptimizer(it.optimizer, scaler=it.scaler)
        schedule = it.schedule
    for _ in range(it.epochs):
        for x, y in it.loader:
            with accelerator.accumulate(model):
                with torch.autocast("cpu", torch.float16) if it.scaler else nullcontext():
                    loss = mse_loss(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients and it.case.clip is not None:
                    accelerator.clip_grad_norm_(model.parameters(), it.case.clip)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    it.optimizer.finish()


class WithLoss(nn.Module):
    """As `transformers.Trainer` has models."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": mse_loss(self.net(x), labels)}


def in_transformers(it: Training) -> None:
    from accelerate import DistributedType
    from transformers import Trainer, TrainingArguments

    class Named:
        """The loader, with names for what is in a batch."""

        dataset = it.loader.dataset

        def __iter__(self) -> Any:
            return ({"x": x, "labels": y} for x, y in it.loader)

        def __len__(self) -> int:
            return len(it.loader)

    class Worker(Trainer):
        def get_train_dataloader(self) -> Any:
            return Named()

    arguments = TrainingArguments(
        "out",
        num_train_epochs=it.epochs,
        gradient_accumulation_steps=it.case.batches,
        max_grad_norm=it.case.clip or 0.0,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    alone = arguments.distributed_state
    alone.distributed_type, alone.num_processes, alone.process_index = DistributedType.NO, 1, it.rank
    assert arguments.should_save == (it.rank == 0)
    data = it.loader.dataset
    trainer = Worker(WithLoss(it.model), arguments, train_dataset=data, optimizers=(it.optimizer, it.schedule))
    trainer.train()
    it.optimizer.finish()


def in_keras(it: Training) -> None:
    import keras

    class Batches(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(it.loader)

        def __len__(self) -> int:
            return len(it.loader)

    class Worker(keras.Model):
        def train_step(self, batch: Any) -> Any:
            x, y = batch
            with torch.autocast("cpu", torch.float16) if it.scaler else nullcontext():
                predicted = self(x, training=True)
                loss = self.compute_loss(x=x, y=y, y_pred=predicted)
            it.optimizer.zero_grad()
            (it.scaler.scale(loss) if it.scaler else loss).backward()
            if it.case.clip is not None:
                nn.utils.clip_grad_norm_(self.parameters(), it.case.clip)
            if it.scaler:
                it.scaler.step(it.optimizer)
                it.scaler.update()
            else:
                it.optimizer.step()
            it.schedule.step()
            return self.compute_metrics(x, y, predicted)

    model = Worker(it.model.inputs, it.model.outputs)
    model.compile(loss="mse", metrics=["mae"])
    epochs = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: it.loader.set_epoch(epoch))
    model.fit(DataLoader(Batches(), batch_size=None), epochs=it.epochs, verbose=0, callbacks=[epochs])
    it.optimizer.finish()


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def keras_net() -> Any:
    import keras

    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(8, activation="tanh")(inputs)))


LIBRARIES: dict[str, tuple[Callable[[], Any], Callable[[Training], None], tuple[str, ...]]] = {
    "fabric": (net, in_fabric, ("clipped", "several batches", "local steps", "scaled", "early ends", "solo")),
    "lightning": (
        net,
        in_lightning,
        ("clipped", "several batches", "local steps", "scaled", "scaled and clipped", "early ends", "solo"),
    ),
    "accelerate": (net, in_accelerate, ("clipped", "several batches", "local steps", "scaled", "early ends", "solo")),
    "transformers": (net, in_transformers, ("clipped", "several batches", "local steps", "early ends", "solo")),
    "keras": (keras_net, in_keras, ("clipped", "local steps", "scaled", "early ends", "solo")),
}
"""What makes a model, the loop, and the cases."""


def data_of(case: Case) -> TensorDataset:
    x = torch.randn(EXAMPLES, 4, generator=torch.Generator().manual_seed(1))
    y = x.sum(1, keepdim=True)
    if case.is_scaled:
        y[17] = torch.inf
    return TensorDataset(x, y)


def trained(world: Any, make: Callable[[], Any], loop: Callable[[Training], None], case: Case) -> list[list[float]]:
    """The parameters of every worker."""
    model = make()
    before = copy.deepcopy(list(model.parameters()))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = quorate.distribute(optimizer, model, case.strategy, **case.settings, on_nonfinite="ignore")
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    loader = quorate.loader(data_of(case), BATCH, seed=3)
    loop(Training(model, optimizer, schedule, loader, case, world.rank, case.scaler()))
    assert not any(map(torch.equal, before, model.parameters()))
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    return [one.tolist() for one in world.gather(flat)]


def main(library: str) -> None:
    world = quorate.join()
    make, loop, names = LIBRARIES[library]
    for name in names:
        found = [trained(world, make, each, CASES[name]) for each in (by_hand, loop)]
        if world.is_first:
            print("case", json.dumps([name, *found]), flush=True)


if __name__ == "__main__":
    os.environ["KERAS_BACKEND"] = "torch"
    main(sys.argv[1])
