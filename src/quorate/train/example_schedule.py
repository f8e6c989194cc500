"""`schedule`: a scheduler of torch that follows the number of examples that all workers together have seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import ref

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from quorate.core.arguments import one_sentence
from quorate.core.errors import ConfigurationError, unknown
from quorate.core.local_tensor import local
from quorate.core.telling import tell
from quorate.data.context import DataContext
from quorate.data.growth import Growth
from quorate.means.fault_tolerant_sum import FaultTolerantSum
from quorate.optim.ada_scale import AdaScale
from quorate.optim.lars import LARS
from quorate.optim.rates import Decay, Rates, Scaling, WarmUp, scale_of, scaling_of
from quorate.replica.worker_momentum import HEAVY_BALL
from quorate.train.alone import WORKER
from quorate.train.worker import StrategyWorker
from quorate.wire import current

EXAMPLES = "examples_seen"
"""The key of the count in parameter groups, so that it is in checkpoints, and in copies for newcomers."""


class ExampleSchedule(LRScheduler):
    """The scheduler of `schedule`: the learning rate of each group is its base rate times `rates.at(examples)`.

    Every step of the optimizer counts as `batch` examples of each worker that trains then. `step()` writes their rate
    into the groups, and may be called after every step, or more rarely. Where workers make unequal numbers of steps,
    the synchronous steps of the training since the call before count. A step of AdaScale counts as its gain says.
    """

    _quorate_goes_by_itself = True

    def __init__(self, optimizer: Optimizer, rates: Rates, batch: int, *, corrects_momentum: bool = False) -> None:
        self.rates, self.batch, self.corrects_momentum = rates, batch, corrects_momentum
        self._hooked = self._extra = 0
        reference = ref(self)

        def before(*_: Any) -> None:
            if (schedule := reference()) is not None:
                schedule._step_begins()

        def after(*_: Any) -> None:
            if (schedule := reference()) is not None:
                schedule._step_ended()

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)
        for group in optimizer.param_groups:
            group.setdefault(EXAMPLES, 0.0)
        self._seen = float(optimizer.param_groups[0][EXAMPLES])
        self._is_moved = False
        """Whether the count was replaced by that of a checkpoint, or of the workers that this one has joined."""
        super().__init__(optimizer)
        self._place, self._own = self._now

    def _step_begins(self) -> None:
        worker = self._worker
        if self.examples != self._seen and (worker is None or not worker.has_rounds):
            self._is_moved = True
            self._put(self.examples)
            self._put_rates()

    def _step_ended(self) -> None:
        self._hooked += 1
        worker = self._worker
        if worker is None or worker.progress is None:
            counts = self.optimizer.gain if isinstance(self.optimizer, AdaScale) else workers_now(worker)
            self._put(self.examples + self.batch * counts)

    def follow_batches(self, growth: Growth, scaling: Scaling) -> None:
        """Count the growing batches of a loader, and scale the rate by this rule."""
        reference = ref(self)

        def grown(times: float) -> None:
            if (schedule := reference()) is not None:
                schedule.batch = round(schedule.batch * times)
                scale = scale_of(scaling, times, 1.0)
                schedule.rates = replace(schedule.rates, scale=schedule.rates.scale * scale)
                schedule._put_rates()

        growth.followers.append(grown)

    @property
    def examples(self) -> float:
        """The number of examples that all workers have seen."""
        return float(self.optimizer.param_groups[0][EXAMPLES])

    def get_lr(self) -> list[Any]:
        """Return the rate of each group for the next step."""
        factor = self.rates.at(self.examples)
        return [base * factor for base in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """Follow one or several steps of the optimizer since the call before. Takes no `epoch`."""
        if epoch is not None:
            raise ConfigurationError("a schedule by examples takes no epoch; call step() without arguments")
        if self._is_initial:
            super().step()
            return
        place, own = self._now
        if self._is_moved or self.examples != self._seen:
            self._place, self._own, self._is_moved = place - 1, own - 1, False
        due, is_new = max(0, place - self._place), own != self._own
        self._place, self._own = place, own
        if not is_new:
            self._notes_another_call()
            return
        worker = self._worker
        if worker is not None and worker.progress is not None:
            self._put(self.examples + due * self.batch * workers_now(worker))
        before = [float(group["lr"]) for group in self.optimizer.param_groups]
        super().step()
        if self.corrects_momentum:
            self._correct(before)

    def has_paused(self) -> None:
        """Follow the rounds that this worker has applied in a pause, if `step()` was called after its newest step."""
        (place, own), worker = self._now, self._worker
        due = place - self._place
        if own != self._own or due <= 0 or worker is None or worker.progress is None:
            return
        self._place = place
        before = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._put(self.examples + due * self.batch * workers_now(worker))
        self._put_rates()
        if self.corrects_momentum:
            self._correct(before)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts; settings stay those of the script."""
        return {EXAMPLES: self.examples, "last_epoch": self.last_epoch, "_step_count": self._step_count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from these counts, at their rate."""
        self.last_epoch, self._step_count = state_dict["last_epoch"], state_dict["_step_count"]
        self._put(state_dict[EXAMPLES])
        self._put_rates()
        self._place, self._own = self._now

    def _put_rates(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _put(self, seen: float) -> None:
        self._seen = seen
        for group in self.optimizer.param_groups:
            group[EXAMPLES] = seen

    @property
    def _worker(self) -> StrategyWorker | None:
        worker = self.optimizer.__dict__.get(WORKER)
        return worker if isinstance(worker, StrategyWorker) else None

    @property
    def _now(self) -> tuple[int, int]:
        worker = self._worker
        if worker is None:
            return self._hooked, self._hooked
        progress = worker.progress
        return worker.step if progress is None else int(progress + 1e-6), worker.step

    def _notes_another_call(self) -> None:
        self._extra += 1
        worker = self._worker
        if self._extra == 2 and worker is not None and worker.wire.size > 1:
            tell(
                "quorate: scheduler.step() is called several times for one optimizer.step(), as if for each worker. "
                "Call it once: the examples of all workers are counted, and the other calls have changed nothing\n"
            )

    def _correct(self, before: Sequence[float]) -> None:
        """Multiply a velocity that holds the rate by the new rate over the old one."""
        with torch.no_grad():
            for group, old in zip(self.optimizer.param_groups, before, strict=True):
                for p in group["params"]:
                    velocity = self.optimizer.state.get(p, {}).get(HEAVY_BALL)
                    if velocity is not None and old > 0:
                        local(velocity).mul_(float(group["lr"]) / old)


def workers_now(worker: StrategyWorker | None) -> float:
    """Return how many workers with batches of their own train; the same on all where they step together."""
    place = current.place()
    if place is None:
        return 1.0
    wire = place.wire
    count = wire.size
    if worker is not None and worker.tolerates_death:
        reducer = worker.means.reducer
        count = len(wire.alive)
        if not worker.has_rounds and not worker.is_served and isinstance(reducer, FaultTolerantSum):
            count = reducer.counted
    return place.context(DataContext).with_batches_of_their_own(float(count), wire.size)


@one_sentence({"total_examples": "it is the number of examples that all workers see in the training", "batch_size": ""})
def schedule(
    optimizer: Optimizer,
    total_examples: float,
    *,
    batch_size: int,
    accumulation: int = 1,
    base_batch_size: int | None = None,
    scaling: Scaling | None = None,
    warm_up: WarmUp = "gradual",
    warm_up_examples: float | None = None,
    warm_up_from: float | None = None,
    decay: Decay = "cosine",
    end: float = 0.0,
    power: float = 2.0,
    milestones: Sequence[float] = (),
    factor: float = 0.1,
    decay_examples: float | None = None,
    momentum_correction: bool = False,
) -> ExampleSchedule:
    """Return a torch scheduler driven by the number of examples that all workers have processed.

    The optimizer's learning rates are those for `base_batch_size` examples per step.

    Args:
        optimizer: The optimizer, before or after `quorate.distribute`.
        total_examples: The number of examples that all workers see in the training, its end.
        batch_size: Examples of one backward pass of each worker.
        accumulation: Backward passes of one step.
        base_batch_size: The batch size of the optimizer's rates; None: `batch_size`.
        scaling: How rates scale with the effective batch: "linear", "sqrt" or "none"; None: as usual for the optimizer.
        warm_up, decay, end, power, milestones, factor, decay_examples: See `optim.rates.Rates`.
        warm_up_examples: Examples of the warm-up; None: a twentieth of all.
        warm_up_from: The beginning of the warm-up in units of the base rate; None: the base rate.
        momentum_correction: Whether to multiply the velocity by the new rate over the old one (Goyal et al. 2017,
            section 3). This is for optimizers that keep the rate in it; torch's SGD and LARS do not.

    A step is scheduled by the number of examples before it, so accumulation, a death or a newcomer does not change a
    schedule. Rank 0 prints one line. SGD and LARS scale linearly by default, Adam's kin and LAMB by the square root.

    Returns:
        The scheduler. Its `examples` is the count; `step()` takes no epoch.

    Raises:
        ConfigurationError: Numbers do not fit together, the scaling rule of the optimizer is unknown, or a momentum
            correction is requested that the optimizer does not need, or in rounds.

    Example:
        >>> scheduler = quorate.schedule(optimizer, total_examples=4096, batch_size=8)
        >>> optimizer.step()
        >>> scheduler.step()
    """
    if not isinstance(optimizer, Optimizer):
        raise ConfigurationError(f"schedule takes a torch.optim.Optimizer, not {type(optimizer).__name__}")
    base = batch_size if base_batch_size is None else base_batch_size
    sizes: dict[str, object] = {"batch_size": batch_size, "accumulation": accumulation, "base_batch_size": base}
    for name, number in sizes.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ConfigurationError(f"{name} must be a whole number (at least 1), not {number!r}")
    if scaling not in ("linear", "sqrt", "none", None):
        raise unknown("scaling", str(scaling), ("linear", "sqrt", "none"))
    if momentum_correction:
        _check_correctable(optimizer)
    rule = scaling_of(_names_of(optimizer)) if scaling is None else scaling
    workers = workers_now(None)
    batch = batch_size * accumulation * workers
    scale = scale_of(rule, batch, base)
    rates = Rates(
        total=total_examples,
        scale=scale,
        warm_up=warm_up,
        warm_up_examples=total_examples / 20 if warm_up_examples is None else warm_up_examples,
        begin=min(1.0, scale) if warm_up_from is None else warm_up_from,
        decay=decay,
        end=end,
        power=power,
        milestones=tuple(milestones),
        factor=factor,
        decay_examples=decay_examples,
    )
    scheduler = ExampleSchedule(optimizer, rates, batch_size * accumulation, corrects_momentum=momentum_correction)
    place = current.place()
    if place is not None:
        scheduler.follow_batches(place.context(Growth), rule)
    if place is None or place.wire.rank == 0:
        lowest = float(scheduler.base_lrs[0])
        tell(
            f"quorate: effective batch {batch:g} ({workers:g} workers x {batch_size} x {accumulation} accumulated); "
            f"learning rate {lowest * rates.scale:g} ({lowest:g} x {rates.scale:g}, {rule}); {rates.in_words}\n"
        )
    return scheduler


def _names_of(optimizer: Optimizer) -> list[str]:
    """Return the names of its classes, the nearest first, without those that `distribute` has made."""
    names = [kind.__name__ for kind in type(optimizer).__mro__ if kind is not Optimizer]
    return [name for name in names if not name.startswith("Distribute")]


def _check_correctable(optimizer: Optimizer) -> None:
    worker = optimizer.__dict__.get(WORKER)
    if isinstance(worker, StrategyWorker) and worker.has_rounds:
        raise ConfigurationError(
            "momentum_correction changes the velocity beside the rounds, and replicas would part; leave it out"
        )
    corrects = isinstance(optimizer, LARS) and all(group["momentum_correction"] for group in optimizer.param_groups)
    if isinstance(optimizer, torch.optim.SGD) or corrects:
        raise ConfigurationError(
            "momentum_correction is for optimizers that keep the rate in the velocity, and this one does not; leave it "
            "out"
        )
