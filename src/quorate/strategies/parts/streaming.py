"""Outer steps of fragments in turn, whose means are formed during local steps (Streaming DiLoCo, Algorithm 2)."""

from __future__ import annotations

from typing import Protocol

import torch

from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies.parts.local_steps import Period, take_mean
from quorate.strategies.parts.outer_steps import OuterState, OuterUnderWay, merged, moved


class StreamingSettings(Protocol):
    """The settings of a strategy whose fragments take outer steps."""

    @property
    def period(self) -> Period:
        """H, of each fragment."""

    @property
    def fragments(self) -> int:
        """K."""

    @property
    def overlap(self) -> int:
        """Local steps that are made while a mean is formed."""

    @property
    def merge(self) -> float:
        """The weight of a worker's own parameters beside the result of an outer step."""

    @property
    def momentum(self) -> str:
        """The fate of the state of the inner optimizer at a mean: see `take_mean`."""


def stream(worker: Worker, settings: StreamingSettings) -> None:
    """After a local step: begin the mean of the next fragment if it is due, and take the means that are old enough."""
    state: OuterState = worker.state
    state.count_step(worker, settings.period)
    if state.is_due(worker, settings.period / settings.fragments):
        x, weight, left = state.give(worker, settings.period, moments=settings.momentum == "average", rests=False)
        state.under_way.append(OuterUnderWay(state.newest, worker.step, left, worker.means.of(x, weight=weight)))
    take_means(worker, settings, age=settings.overlap)


def take_means(worker: Worker, settings: StreamingSettings, *, age: int = 0, rests: bool = False) -> None:
    """Wait for the means that began `age` steps ago or earlier, in order, and make the outer step of each.

    A worker that `rests` keeps in full the steps that it has made meanwhile; else they count `settings.merge`.
    """
    state: OuterState = worker.state
    while state.under_way and worker.step - state.under_way[0].step >= age:
        number, _, left, mean = state.under_way.pop(0)
        outer_step(worker, settings, number, mean.wait(), left if rests else None)


def outer_step(worker: Worker, settings: StreamingSettings, number: int, mean: Flat, left: Flat | None = None) -> None:
    """Make the outer step of fragment `number` on the mean of all deltas, and go on from its result.

    `left` are the parameters of the fragment as the mean began, if later steps count in full.
    """
    state, fragment = worker.state, worker.state.fragments[number]
    own, x, has_steps = worker.parameters, state.point_of(number), worker.replica.numbers_of(mean)[0] > 0
    gradient = state.turned(mean, number)
    if has_steps:
        take_mean(worker, mean, settings.momentum, only=fragment)
        state.outer.step(worker, x, gradient, state.memory[number], number)
        share = settings.merge if state.since[number] else 0.0
        worker.parameters = merged(own, x, fragment, share) if left is None else moved(own, x, left, fragment)
    elif any(map(torch.count_nonzero, gradient.parts)):  # since the fragment's last mean only scripts have moved it
        x.add_(gradient, -worker.means.share)
        worker.parameters = merged(own, x, fragment, 0.0)
