"""The times of one optimizer's steps, row by row in the worker's records; and rows of distances and outer steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from quorate.core.contracts import Work
from quorate.core.device_copies import widest
from quorate.core.local_tensor import local
from quorate.data.consumption import Consumed
from quorate.data.context import DataContext
from quorate.observe.memory_use import MemoryUse
from quorate.observe.seen_losses import SeenLosses
from quorate.records.records import Recorder
from quorate.records.rows import Distance, Outer, Step
from quorate.sharding.traffic import Traffic
from quorate.wire.current import Place
from quorate.wire.metered import Meter

T = TypeVar("T")
Spent = Literal["delay", "encode", "wait", "decode", "update"]


@dataclass
class Timing:
    """The timers of one worker."""

    recorder: Recorder | None = None
    """The records of the worker; None: it keeps none."""
    timers: list[StepTimer] = field(default_factory=list)
    """The timers of the worker, the first optimizer's first."""


class StepTimer:
    """Measures the time of one optimizer's steps. A step begins where the one before it ended.

    The rows of the first optimizer include the worker's loading time and injected delays.
    """

    def __init__(self, place: Place, name: str, meter: Meter, traffic: Traffic | None = None) -> None:
        """`traffic` is that of this worker's piece of a replica: waiting there counts as this optimizer's."""
        self.recorder = place.context(Timing).recorder
        """The receiver of rows; None: there is none."""
        self.is_first = not place.context(Timing).timers
        place.context(Timing).timers.append(self)
        self._place, self.clock, self.name, self._meter = place, place.wire.clock, name, meter
        self._consumed, self._data = place.context(Consumed), place.context(DataContext)
        self._consumed.follow_steps()
        self.steps = self.rounds = 0
        self._memory = place.context(MemoryUse)
        self.begin = self.clock.now()
        self.waited_before = 0.0
        """Seconds of waiting in the step before."""
        self._bytes_out = self._bytes_in = 0
        self._traffic = traffic
        if traffic is not None:
            traffic.waits.append(partial(self.spent, "wait"))
        self._stages_before: tuple[float, int, int] = 0.0, 0, 0
        self._is_spending = False
        self._reset()

    def _reset(self) -> None:
        self._spent = dict.fromkeys(("delay", "encode", "wait", "decode", "update"), 0.0)
        self._arrive: float | None = None
        self._busy_before = 0.0
        self._losses = SeenLosses()
        self.pace: float | None = None
        """Seconds of this step's delay that brought it to the pace; None without a pace."""
        self.contributors, self.staleness = 1, 0

    def saw(self, losses: Any) -> None:
        """Add an argument of backward: a scalar is the loss (the mean, of several)."""
        self._losses.add(losses)
        now = self.clock.now()
        if now >= self._memory.look_at:
            self._memory.look(now)

    @contextmanager
    def spending(self, on: Spent) -> Iterator[None]:
        """Count the time of the block as spent on `on`; a block inside another one belongs to the outer one."""
        if self._is_spending:
            yield
            return
        begin, self._is_spending = self.clock.now(), True
        try:
            yield
        finally:
            self._spent[on] += self.clock.now() - begin
            self._is_spending = False

    def spent(self, on: Spent, seconds: float) -> None:
        """Count `seconds` as spent on `on`."""
        self._spent[on] += seconds

    @property
    def coding(self) -> float:
        """Seconds of this step that codecs have taken so far."""
        return self._spent["encode"] + self._spent["decode"]

    def arrived(self, at: float | None = None) -> None:
        """Note that the worker is at the meeting point of this step (by default now); only the first call counts."""
        if self._arrive is None:
            self._arrive = self.clock.now() if at is None else at
            self._busy_before = self._spent["update"] + self._spent["encode"] + self._spent["wait"]

    @property
    def work(self) -> float:
        """Seconds from the beginning of this step to the meeting point, or until now."""
        return (self.clock.now() if self._arrive is None else self._arrive) - self.begin

    @property
    def loss(self) -> float | None:
        """The loss of this step so far; None if it is unknown."""
        return self._losses.known

    @property
    def is_alone(self) -> bool:
        """Whether this worker trains no other optimizer."""
        return len(self._place.context(Timing).timers) == 1

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Count the time and the contributors of the block in no step."""
        kept = self._arrive, self._busy_before, dict(self._spent), self.contributors, self.staleness, self.pace
        try:
            yield
        finally:
            self._arrive, self._busy_before, self._spent, self.contributors, self.staleness, self.pace = kept

    def set_out_again(self) -> None:
        """Count the time up to now (an evaluation) in no step."""
        self.begin = self.clock.now()
        self._bytes_out, self._bytes_in = self._exchanged()
        self._between_stages()

    def _between_stages(self) -> Mapping[str, Any]:
        """Return the entries of a row about a model in stages, since the last call."""
        now = None if self._traffic is None else self._traffic.along
        if now is None:
            return {}
        sums = now.waited, sum(now.meter.bytes_out.values()), sum(now.meter.bytes_in.values())
        before, self._stages_before = self._stages_before, sums
        return {"bubble": sums[0] - before[0], "stage_out": sums[1] - before[1], "stage_in": sums[2] - before[2]}

    def _exchanged(self) -> tuple[int, int]:
        return sum(self._meter.bytes_out.values()), sum(self._meter.bytes_in.values())

    def ended(self, *, is_scaled: bool = False) -> None:
        """End the step; with `is_scaled` a GradScaler has multiplied the loss that was seen."""
        now, begin, spent = self.clock.now(), self.begin, self._spent
        self.arrived(now)
        assert self._arrive is not None
        self.steps += 1
        taken = self._consumed
        taken.steps = (taken.steps or 0) + 1
        has_loaded = self.is_first and (taken.examples is not None or taken.seconds > 0)
        data, examples, tokens = taken.take() if has_loaded else (0.0, None, None)
        if self._data.repeats:
            examples, tokens = examples and 0, tokens and 0
        if self.recorder is not None:
            sent, received = self._exchanged()
            times: dict[str, Any] = spent if self._traffic is None else {**spent, **self._between_stages()}
            loss, late = self._losses.of_script(is_scaled=is_scaled)
            self.recorder.step(
                Step(
                    step=self.steps,
                    optimizer=self.name,
                    round=self.rounds,
                    begin=begin,
                    arrive=self._arrive,
                    end=now,
                    data=data,
                    compute=max(0.0, self._arrive - begin - data - spent["delay"] - self._busy_before),
                    loss=loss,
                    examples=examples,
                    tokens=tokens,
                    bytes_out=sent - self._bytes_out,
                    bytes_in=received - self._bytes_in,
                    contributors=self.contributors,
                    staleness=self.staleness,
                    pace=self.pace,
                    **times,
                ),
                late,
            )
            self._bytes_out, self._bytes_in = sent, received
            if self.is_first and now >= self._memory.look_at:
                self._memory.stepped(now, self.steps)
        self.begin, self.waited_before = now, spent["wait"]
        self._reset()


class Timed(Generic[T]):
    """A work whose waiting counts as the timer's `wait`, apart from the time of codecs meanwhile."""

    def __init__(self, work: Work[T], timer: StepTimer) -> None:
        self._work, self._timer = work, timer

    def done(self) -> bool:
        return self._work.done()

    def wait(self, timeout: float | None = None) -> T:
        begin, busy = self._timer.clock.now(), self._timer.coding
        try:
            return self._work.wait(timeout)
        finally:
            self._timer.spent("wait", self._timer.clock.now() - begin - (self._timer.coding - busy))


def note_distance(timer: StepTimer, own: Sequence[Tensor], mean: Sequence[Tensor]) -> None:
    """Write a `distance` row of two lists of parameters, if records are kept. Cost: two passes in double precision."""
    recorder = timer.recorder
    if recorder is not None:
        away = _norm([local(x).detach() - y for x, y in zip(own, mean, strict=True)])
        now = timer.clock.now()
        recorder.write(Distance(step=timer.steps, time=now, optimizer=timer.name, distance=away, norm=_norm(mean)))


def note_outer_step(timer: StepTimer, fragment: int, measured: Mapping[str, Any]) -> None:
    """Write an `outer` row, if records are kept."""
    recorder = timer.recorder
    if recorder is not None:
        now = timer.clock.now()
        recorder.write(Outer(step=timer.steps, time=now, optimizer=timer.name, fragment=fragment, **measured))


def _norm(parts: Sequence[Tensor]) -> float:
    """Return the Euclidean norm, in double precision."""
    wide = (part.to(widest(part.device).to_complex() if part.is_complex() else widest(part.device)) for part in parts)
    return math.sqrt(sum(float(torch.linalg.vector_norm(part) ** 2) for part in wide))
