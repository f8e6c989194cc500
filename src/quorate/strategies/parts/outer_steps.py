"""Outer steps of local-step methods: the mean of one fragment comes in, and where all go on from goes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies.parts.fragments import Fragments, UnderWay, among


@dataclass(kw_only=True)
class Outer(Fragments):
    """What the outer optimizers keep, equal on all workers."""

    before: Flat | None = kept("same")
    """Where all began, or where the newest outer steps led; None where there was none yet."""
    memory: list[dict[str, Any]] = kept("same", is_adapted=True)
    """Of the outer optimizer of each fragment."""


@dataclass(frozen=True, kw_only=True)
class OuterSteps:
    """How they are made."""

    kind: str
    """A name of `train.outer.KINDS`."""
    options: Mapping[str, Any]
    """As torch's optimizer has them."""
    is_on_cpu: bool
    """Whether `before` and memories lie in the host's memory, instead of beside the model."""
    momentum: Literal["keep", "average", "reset"]
    """What becomes of what the user's optimizer keeps, at a mean."""
    merge: float
    """What the own parameters count, where steps were made since they were given."""

    def place(self, x: Flat) -> Flat:
        """`x` where `before` lies."""
        return x.map(torch.Tensor.cpu) if self.is_on_cpu else x

    def resume(self, state: Outer, at: Flat | None) -> None:
        """`state` is what a checkpoint has kept; of another number of fragments, the outer optimizers begin anew.

        `at` is where all are, if steps are local: they begin there where `state` does not know it.
        """
        count, before = len(state.fragments), at if state.before is None else state.before
        if before is not None:
            state.before = self.place(before)
        if not len(state.memory) == len(state.since) == count:
            state.memory, state.since, state.turn = [{} for _ in range(count)], [0.0] * count, 0

    def vector(self, worker: Worker, number: int, state: Outer) -> Flat:
        """What this worker gives to the mean of a fragment; behind it a 1, which is 0 in a mean that nobody gave to."""
        fragment = state.fragments[number]
        return worker.replica.read(moments=self.momentum == "average", numbers=(1.0,), only=fragment)

    def give(self, worker: Worker, state: Outer, period: float) -> tuple[Flat, float]:
        """What this worker gives to the mean of the fragment whose turn it is, and its weight: 1 for a whole period.

        Means are taken in one after the other: those under way come first, on every worker, also on one that does not
        step any more.
        """
        self.take_in(worker, state)
        number = state.turn_over()
        mine = self.vector(worker, number, state)
        weight, state.since[number] = state.since[number] / period, 0.0
        return mine, weight

    def begin(self, worker: Worker, vector: Flat, weight: float, state: Outer) -> None:
        """Let the mean of the fragment that was given last be under way."""
        mean = worker.means.of(vector, weight=weight)
        state.under_way.append(UnderWay(state.given, worker.step, mean))

    def take_in(self, worker: Worker, state: Outer, *, age: int = 0) -> None:
        """Wait for the means that began `age` steps ago or earlier, and take them in."""
        while state.under_way and worker.step - state.under_way[0].step >= age:
            number, _, mean = state.under_way.pop(0)
            self.take(worker, number, mean.wait(), state)

    def take(self, worker: Worker, number: int, mean: Flat, state: Outer) -> None:
        """One outer step of a fragment on the way to its `mean`; the model goes on from there."""
        fragment, replica, before = state.fragments[number], worker.replica, state.before
        assert before is not None
        if not replica.numbers_of(mean)[0]:
            return  # nobody had made a step
        mine = worker.parameters
        worker.measure_distance(mean, only=fragment)
        replica.write(mean, moments=self.momentum == "average", only=fragment)
        if self.momentum == "reset":
            replica.forget_moments(only=fragment)
        reached = among(self.place(replica.parameters_of(mean, only=fragment)), fragment)
        point = among(before, fragment)
        worker.updater(point, state.memory[number], kind=self.kind, **self.options)(point - reached)
        share = self.merge if state.since[number] else 0.0
        for own, common in zip(among(mine, fragment).parts, point.parts, strict=True):
            merged = own * share + common.to(own.device) * (1 - share) if share else common
            own.copy_(merged)
        worker.parameters = mine
