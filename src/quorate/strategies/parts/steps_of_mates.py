"""The local steps of a learner, which may be of several workers: see `mates`."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quorate.core.means import Mean
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat, Layout
from quorate.strategies.parts.fragments import Fragment
from quorate.strategies.parts.local_steps import LocalSteps
from quorate.strategies.parts.mates import Mates, Met

_WHOLE = ("steps", "done", "examples", "since", "times", "again_after")
"""Fields of a learner that are the same on all of its workers."""


@dataclass
class HandedIn:
    """What one worker handed in at a time, by fragment."""

    since: list[list[float]]
    """`Learner.since` then."""
    ways: list[Flat]
    """As they went into rounds: only to be read."""


@dataclass(kw_only=True)
class StepsOfMates(LocalSteps):
    """One worker's part in the steps of its learner."""

    fragments: tuple[Fragment, ...] = kept("drop")
    since: list[list[float]] = kept("average", is_adapted=True)
    """By fragment: steps, and the sum of their weights, since this worker's last merge."""
    handed: dict[int, HandedIn] = kept("drop", default_factory=dict)
    """What may still come back in a round, by the time at which it was handed in."""
    times: int = kept("drop", default=0)
    """How often that was."""
    handed_at: int = kept("drop", default=0)
    """The step in which it was last."""
    again_after: float = kept("average", default=0.0)
    """Steps from then until it hands in again, as `came` says; 0: as set."""
    mates: Mates | None = kept("drop", default=None)
    """Where learners are of several workers: those of this one."""

    def meet(self, worker: Worker) -> None:
        """Where it is of several workers: exchange gradients with the others, once for each step."""
        if self.mates is not None:
            counts = self.mates.period.unit == "seconds" and self.began is not None
            self.mates.meet(worker, self, worker.clock.now() - (self.began or 0.0) if counts else 0.0)

    def step_begins(self, worker: Worker) -> None:
        """Meet, where no backward pass has."""
        if self.mates is not None and self.mates.met is None:
            self.meet(worker)

    def step_ended(self) -> None:
        """What was met for is over."""
        if self.mates is not None:
            self.mates.met = None

    @property
    def met(self) -> Met | None:
        """In a step, where it is of several workers."""
        return None if self.mates is None else self.mates.met

    @property
    def learners(self) -> tuple[int, ...]:
        """Which each worker is of, by rank; empty where each is one of its own."""
        return () if self.mates is None else self.mates.of

    @property
    def fresh(self) -> float:
        """Steps that are new in what is handed in; all of them, where another worker may have been about to."""
        is_alone = self.mates is None or len(self.mates.group.ranks) == 1
        return float(self.steps if is_alone else max(amounts[0] for amounts in self.since))

    @property
    def up_to(self) -> int | None:
        """The newest round that is applied in this step; None: all that are here."""
        return None if self.met is None else self.met.up_to

    def told_in(self, worker: Worker, one: Mean) -> Sequence[Any]:
        """What this learner told with what it has in a round."""
        return one.told.get(worker.rank, ()) if self.mates is None else self.mates.told_in(one.told)

    def layouts(self, worker: Worker) -> list[Layout]:
        """Of what is handed in, by fragment."""
        return [worker.replica.read(numbers=[0.0] * (1 + len(own)), only=own).layout for own in self.fragments]

    def told_whole(self, worker: Worker) -> tuple[dict[str, Any], list[Tensor]]:
        """What it keeps beside what is the same on all workers, as JSON and tensors."""
        told = {name: getattr(self, name) for name in _WHOLE}
        told["ago"] = worker.step - self.handed_at
        told["handed"] = [[time, one.since] for time, one in self.handed.items()]
        return told, [part for one in self.handed.values() for way in one.ways for part in way.parts]

    def become(self, worker: Worker, told: Mapping[str, Any], tensors: Sequence[Tensor]) -> None:
        """What another worker of this learner told."""
        for name in _WHOLE:
            setattr(self, name, copy.deepcopy(told[name]))
        self.handed_at = worker.step - told["ago"]
        layouts, parts = self.layouts(worker), iter(tensors)
        self.handed = {
            time: HandedIn(since, [Flat([next(parts) for _ in layout.parts], layout) for layout in layouts])
            for time, since in told["handed"]
        }
