"""Outer steps: the optimizer that takes the way of all workers for a gradient, and what it remembers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from quorate.core.contracts import Work
from quorate.core.errors import ConfigurationError
from quorate.core.resize import kept
from quorate.core.strategy import Strategy, Worker
from quorate.core.vectors import Flat
from quorate.strategies.parts.edits import edit_of, is_edited
from quorate.strategies.parts.fragments import By, Fragment, among, fragments_of
from quorate.strategies.parts.local_steps import Period
from quorate.strategies.parts.outer_gain import holding, measured, of_optimizer
from quorate.strategies.parts.synchronous_phase import SynchronousPhase


@dataclass(frozen=True)
class OuterOptimizer:
    """An optimizer of points that all workers have in common."""

    kind: str
    """A name of `replica.outer_optimizer.KINDS`."""
    rate: float
    momentum: float
    is_nesterov: bool
    device: str
    """The place of points: "own" is beside the model, "cpu" in the host's memory."""
    reach: float | None = None
    """The length of a step along its gradient, in gradients, for which the momentum is chosen; None: it is not."""

    def place(self, x: Flat) -> Flat:
        """`x` where points lie."""
        return x.map(torch.Tensor.cpu) if self.device == "cpu" else x

    def step(self, worker: Worker, point: Flat, gradient: Flat, memory: dict[str, Any], fragment: int) -> None:
        """Move `point`, where all are in a fragment, in place, by one step along `gradient`, and record it."""
        options: dict[str, Any] = {"lr": self.rate, "eps": 1e-3}
        momentum = self._momentum_of(gradient, memory)
        if self.kind == "sgd":
            options = {"lr": self.rate, "momentum": momentum, "nesterov": self.is_nesterov and momentum > 0}
        elif self.kind == "adam":
            options["betas"] = (momentum, 0.99)
        before, own = point.clone(), of_optimizer(memory)
        worker.updater(point, own, kind=self.kind, **options)(gradient)
        memory.update(own)
        measures = measured(before, point, gradient, memory, self.rate)
        worker.note_outer_step(fragment, {"momentum": momentum, **measures.as_row()})

    def _momentum_of(self, gradient: Flat, memory: dict[str, Any]) -> float:
        if self.reach is None:
            return self.momentum
        return holding(gradient, memory, self.reach / self.rate, most=self.momentum, is_nesterov=self.is_nesterov)


@dataclass(frozen=True, kw_only=True)
class OuterStepSettings(Strategy):
    """The settings that strategies of outer steps have in common; their hooks are their own."""

    fragments: int = 1
    """K: the number of parts of the parameters that are averaged one after the other, H / K apart."""
    fragments_by: Literal["bytes", "layer"] = "bytes"
    """How they are cut: tensors by their bytes, or layers one after the other, each whole."""
    overlap: int = 0
    """Local steps that are made while a mean is under way."""
    merge: float = 0.5
    """The weight of the own parameters beside the outer step's, if steps were made meanwhile; at a pause these steps
    count in full."""
    outer: Literal["adagrad", "adam", "sgd"] = "sgd"
    """The outer optimizer."""
    outer_rate: float = 0.7
    """Its learning rate."""
    outer_momentum: float = 0.9
    """Its momentum; of Adam the first beta."""
    nesterov: bool = True
    """Whether its momentum is Nesterov's (SGD only)."""
    outer_gain: Literal["set", "measured"] = "set"
    """Whether its momentum is as set, or in each outer step what makes it go `outer_reach` along the mean way, and
    `outer_momentum` at most (SGD only)."""
    outer_reach: float = 1.5
    """How many times the mean way an outer step goes along it where `outer_gain` is "measured"."""
    outer_device: Literal["own", "cpu"] = "own"
    """The place of the outer optimizer and its copy of the parameters: with the model, or in the host's memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_outer(self.outer_rate, self.outer_momentum)
        if self.outer_gain == "measured":
            check_reach(self.outer, self.outer_reach, self.outer_rate)

    @property
    def outer_optimizer(self) -> OuterOptimizer:
        """The outer optimizer of these settings."""
        reach = self.outer_reach if self.outer_gain == "measured" else None
        return OuterOptimizer(self.outer, self.outer_rate, self.outer_momentum, self.nesterov, self.outer_device, reach)


class Delta(NamedTuple):
    """The contribution of a worker to the mean of one fragment."""

    x: Flat
    weight: float
    left: Flat
    """The parameters of the fragment, where points lie."""


class OuterUnderWay(NamedTuple):
    """A mean of one fragment that is being formed."""

    number: int
    """The number of the fragment."""
    step: int
    """The step in which the mean began."""
    left: Flat
    """The parameters of the fragment as they were then."""
    mean: Work[Flat]


@dataclass(kw_only=True)
class OuterState(SynchronousPhase):
    """The local steps of one worker, its fragments, and the outer optimizers, which are equal on all workers."""

    fragments: tuple[Fragment, ...] = kept("drop")
    turn: int = kept("same", default=0)
    """The number of the fragment that is averaged next; means are in the same order on all workers."""
    newest: int = kept("drop", default=0)
    """The number of the fragment that was given last."""
    since: list[float] = kept("average", is_adapted=True)
    """Steps, or examples, since the last mean of each fragment."""
    under_way: list[OuterUnderWay] = kept("drop", default_factory=list)
    """The oldest first."""
    outer: OuterOptimizer = kept("drop")
    before: Flat | None = kept("same")
    """The point at which all workers began, or to which outer steps have led; None before the first local step."""
    memory: list[dict[str, Any]] = kept("same", is_adapted=True)
    """The state of the outer optimizer of each fragment."""

    def count_step(self, worker: Worker, period: Period) -> None:
        """Count the step that the worker has just made, for every fragment as well."""
        self.count(worker, period)
        amount = worker.examples if period.unit == "examples" else worker.weight
        self.since = [done + amount for done in self.since]

    def next_fragment(self, period: Period) -> tuple[Fragment, float]:
        """Give the next fragment, and count steps from 0; returns it and its weight, 1 after a whole period."""
        self.restart()
        self.newest, self.turn = self.turn, (self.turn + 1) % len(self.fragments)
        weight, self.since[self.newest] = self.since[self.newest] / period.count, 0.0
        return self.fragments[self.newest], weight

    def point_of(self, number: int) -> Flat:
        """A view of the common point in a fragment."""
        assert self.before is not None, "outer steps begin at a point"
        return among(self.before, self.fragments[number])

    def turned(self, x: Flat, number: int) -> Flat:
        """Convert the parameters of a fragment in `x` into their delta from the common point, or a delta back.

        Returns the numbers before, on the device of points. Deltas are exchanged, as small differences of means are
        rounded away.
        """
        point, parts = self.point_of(number), []
        for own, there in zip(x.segments(), point.parts, strict=False):
            parts.append(own.reshape(-1).to(there.device, copy=True))
            own.copy_(there.view_as(own).to(own.device) - own)
        return Flat(parts, point.layout)

    def give(self, worker: Worker, period: Period, *, moments: bool, rests: bool) -> Delta:
        """Return the delta of the next fragment from the common point.

        A number follows it: 1 if the worker has made a step since the fragment's newest mean. If it `rests` and has
        made none, an edit by the script has the weight of one step, and the number is 0.
        """
        fragment, weight = self.next_fragment(period)
        delta = worker.replica.read(moments=moments, numbers=(1.0,), only=fragment)
        left = self.turned(delta, self.newest)
        if rests and not weight and is_edited(left.parts, self.point_of(self.newest).parts):
            weight = 1 / period.count
            delta.segment(-1).zero_()
        return Delta(delta, weight, left)

    def begin_outer_steps(self, worker: Worker, at: Flat) -> None:
        """Make local steps from the next one on, and outer steps from `at`, where all workers are."""
        self.turn_local(worker)
        self.before = self.outer.place(at)

    def restore(self, worker: Worker, at: Flat | None) -> None:
        """Go on from the consensus `at`; with None, from a checkpoint.

        After a checkpoint with another number of fragments the outer optimizers begin anew.
        """
        if at is None:
            worker.means.step_alone(self.is_local)
            at = worker.parameters if self.is_local and self.before is None else self.before
            count = len(self.fragments)
            if not len(self.memory) == len(self.since) == count:
                self.memory, self.since, self.turn = [{} for _ in range(count)], [0.0] * count, 0
        self.before = None if at is None else self.outer.place(at)


def outer_state(x: Flat, count: int, outer: OuterOptimizer, *, by: By = "bytes", is_local: bool) -> OuterState:
    """The state at the start, of parameters `x` in `count` fragments; outer steps begin there if steps are local."""
    return OuterState(
        is_local=is_local,
        fragments=fragments_of(x.layout, count, by),
        since=[0.0] * count,
        outer=outer,
        before=outer.place(x) if is_local else None,
        memory=[{} for _ in range(count)],
    )


def check_outer(rate: float, momentum: float) -> None:
    """Raise `ConfigurationError` for a rate or a momentum that no outer optimizer can have."""
    if not rate > 0 or not 0 <= momentum < 1:
        settings = f"outer_rate={rate}, outer_momentum={momentum}"
        raise ConfigurationError(f"{settings}: the rate must be above 0, and the momentum at least 0 and below 1")


def check_reach(kind: str, reach: float, rate: float) -> None:
    """Raise `ConfigurationError` for settings that no measured gain can keep."""
    if kind != "sgd":
        raise ConfigurationError(f'outer_gain="measured" chooses the momentum of SGD, and outer is {kind!r}; use "sgd"')
    if not rate <= reach < math.inf:
        raise ConfigurationError(f"outer_reach is {reach}; it must be a number from outer_rate, {rate}, on")


def merged(own: Flat, common: Flat, fragment: Fragment, share: float) -> Flat:
    """Return `own`, in which a fragment has the weight `share`, and `common`, on any device, the other part."""
    for own_part, theirs in zip(among(own, fragment).parts, common.parts, strict=True):
        own_part.copy_(own_part * share + theirs.to(own_part.device) * (1 - share) if share else theirs)
    return own


def moved(own: Flat, common: Flat, left: Flat, fragment: Fragment) -> Flat:
    """`own`, in which a fragment has moved to `common`, and on from there as far as it had from `left`."""
    for own_part, theirs, before in zip(among(own, fragment).parts, common.parts, left.parts, strict=True):
        own_part.copy_(edit_of(own_part, before, theirs).add_(theirs.to(own_part.device)))
    return own
