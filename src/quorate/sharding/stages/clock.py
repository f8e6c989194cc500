"""The duration of a step of a pipeline, from that of each pass: simulated, and by formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.core.errors import ConfigurationError
from quorate.sharding.stages.orders import BACKWARD, DELAYED, FORWARD, INPUT, WEIGHT, Action, Order, schedule_named

Place = tuple[str, int, int]
"""The forward pass, or the gradient of the input, of a stage for a micro-batch."""

_NEARLY = 1e-12
"""A share of the current time: less than this remains of a pass, by rounding, when it has ended."""


@dataclass(frozen=True)
class Clock:
    """One simulated step of a pipeline."""

    seconds: float
    """From its first pass to its last."""
    busy: tuple[float, ...]
    """Seconds for which each worker computes."""

    @property
    def bubble(self) -> tuple[float, ...]:
        """The share of the step in which each worker does not compute."""
        return tuple(1 - busy / self.seconds if self.seconds else 0.0 for busy in self.busy)


def clock(
    order: Order,
    forward: Sequence[float],
    backward: Sequence[float],
    weight: Sequence[float],
    send: float = 0.0,
    overlap: bool = True,
    cores: float | None = None,
) -> Clock:
    """Simulate one step. Raises `ConfigurationError` for an order in which workers wait for each other for ever.

    Args:
        order: The passes of each worker in their order. A pass begins when its inputs are there and the worker's
            preceding pass has ended.
        forward: Seconds of the forward pass of each stage, for one micro-batch.
        backward: Seconds of the gradient of the input, as in `forward`.
        weight: Seconds of the gradient of the weights, as in `forward`. A full backward pass ("B") takes both, and its
            gradient is sent when it has ended.
        send: Seconds that activations, and gradients, take from a stage to the next one on another worker.
        overlap: Whether a worker computes while it sends. Messages do not wait for each other.
        cores: The number of cores on which all workers together compute. If more compute at a time, all are slowed
            down alike. None: each has one of its own.

    Cost: with `cores`, one check of every worker for every pass.
    """
    if cores is None or cores >= len(order):
        return _Play(order, forward, backward, weight, send, overlap).played()
    return _OnCores(order, forward, backward, weight, send, overlap).played_on(cores)


def ends_of(order: Order) -> dict[Place, float]:
    """Return when each forward pass ends, and each gradient of an input, if every pass takes as long as another."""
    stages = 1 + max((action.stage for actions in order for action in actions), default=-1)
    play = _Play(order, [1.0] * stages, [1.0] * stages, [1.0] * stages, 0.0, True)
    play.played()
    return play.done


class _Play:
    def __init__(
        self,
        order: Order,
        forward: Sequence[float],
        backward: Sequence[float],
        weight: Sequence[float],
        send: float,
        overlap: bool,
    ):
        self.order, self.send, self.overlap = order, send, overlap
        self.seconds = {
            FORWARD: forward,
            INPUT: backward,
            WEIGHT: weight,
            BACKWARD: [
                input_seconds + weight_seconds for input_seconds, weight_seconds in zip(backward, weight, strict=True)
            ],
        }
        self.owner = {action.stage: worker for worker, actions in enumerate(order) for action in actions}
        self.last = max(self.owner, default=-1)
        self.done: dict[Place, float] = {}
        self.free = [0.0] * len(order)
        self.busy = [0.0] * len(order)

    def played(self) -> Clock:
        next_of = [0] * len(self.order)
        waiting: dict[Place, list[int]] = {}
        ready = list(range(len(self.order)))
        while ready:
            worker = ready.pop()
            while next_of[worker] < len(self.order[worker]):
                action = self.order[worker][next_of[worker]]
                missing = next((place for place in self._needed(action) if place not in self.done), None)
                if missing is not None:
                    waiting.setdefault(missing, []).append(worker)
                    break
                ready += waiting.pop(self._make(worker, action), [])
                next_of[worker] += 1
        self._check(next_of)
        return Clock(max(self.free, default=0.0), tuple(self.busy))

    def _check(self, next_of: Sequence[int]) -> None:
        for worker, number in enumerate(next_of):
            if number < len(self.order[worker]):
                stage, kind, microbatch = self.order[worker][number]
                raise ConfigurationError(
                    f"worker {worker} waits forever before {kind} of stage {stage}, micro-batch {microbatch}; in an "
                    "order each stage comes after the one before it, and backward after the one behind it"
                )

    def _needed(self, action: Action) -> list[Place]:
        stage, kind, microbatch = action
        if kind == FORWARD:
            return [(FORWARD, stage - 1, microbatch)] if stage else []
        if kind == WEIGHT:
            return [(INPUT, stage, microbatch)]
        behind = [(INPUT, stage + 1, microbatch)] if stage < self.last else []
        return [(FORWARD, stage, microbatch), *behind]

    def _make(self, worker: int, action: Action) -> Place:
        """Play `action`; return the place that other workers may wait for."""
        begun = max([self.free[worker], *(self._arrived(place, worker) for place in self._needed(action))])
        return self._end(worker, action, begun + self.seconds[action.kind][action.stage])

    def _end(self, worker: int, action: Action, ended: float) -> Place:
        """End `action` at that time; return the place that other workers may wait for."""
        stage, kind, microbatch = action
        made = (INPUT if kind == BACKWARD else kind, stage, microbatch)
        self.done[made] = ended
        self.busy[worker] += self.seconds[kind][stage]
        to = {FORWARD: stage + 1, INPUT: stage - 1}.get(made[0], stage)
        is_sent = self.owner.get(to, worker) != worker
        self.free[worker] = ended + self.send if is_sent and not self.overlap else ended
        return made

    def _arrived(self, place: Place, worker: int) -> float:
        return self.done[place] + (self.send if self.owner[place[1]] != worker else 0.0)


class _OnCores(_Play):
    """Workers that share cores: all that compute at a time are equally fast."""

    def played_on(self, cores: float) -> Clock:
        next_of = [0] * len(self.order)
        left: dict[int, float] = {}
        """Remaining seconds of passes in progress, as on a core of their own."""
        now = 0.0
        while True:
            begins = {
                worker: at
                for worker, actions in enumerate(self.order)
                if worker not in left
                and next_of[worker] < len(actions)
                and (at := self._may_begin(worker, actions[next_of[worker]])) is not None
            }
            for worker in [candidate for candidate, at in begins.items() if at <= now]:
                action = self.order[worker][next_of[worker]]
                left[worker] = self.seconds[action.kind][action.stage]
                del begins[worker]
            if not left and not begins:
                break
            speed = min(1.0, cores / len(left)) if left else 1.0
            until = min([*(now + remaining / speed for remaining in left.values()), *begins.values()])
            for worker in list(left):
                left[worker] -= (until - now) * speed
                if left[worker] <= _NEARLY * max(until, 1.0):
                    del left[worker]
                    self._end(worker, self.order[worker][next_of[worker]], until)
                    next_of[worker] += 1
            now = until
        self._check(next_of)
        return Clock(max(self.free, default=0.0), tuple(self.busy))

    def _may_begin(self, worker: int, action: Action) -> float | None:
        """Return the time from which it may begin; None where an input is not there yet."""
        needed = self._needed(action)
        if any(place not in self.done for place in needed):
            return None
        return max([self.free[worker], *(self._arrived(place, worker) for place in needed)])


def bubble_by_formula(schedule: str, workers: int, chunks: int, microbatches: int) -> float:
    """Return the share of a step in which a worker is idle, of p workers of v equal stages and m micro-batches.

    Messages take no time, and each part of a backward pass takes as long as a forward pass. `gpipe` and `1f1b`:
    (p - 1) / (m + p - 1). `interleaved-1f1b` where m is a multiple of p, and `looped-bfs` from m = p on:
    (p - 1) / (v m + p - 1) (Narayanan et al. 2021, section 2.2; Lamy-Poirier 2023, section 3). With a backward pass in
    two parts, a third of that idle time: p - 1 passes rather than 3 (p - 1) (Qi et al. 2024, section 2, ZB-H1). It
    holds for `interleaved-zero-bubble` where m is a multiple of p, for `zbv` from m = 2p - 1 on, and for `dualpipev`
    always. The paper's zero is for steps that begin on each worker as soon as its last one has ended; here a step ends
    for all. `pipedream-2bw` has the same third from m = 2p on.
    """
    is_short = schedule == DELAYED or schedule_named(schedule).is_split
    idle = (workers - 1) * (1 if is_short else 3)
    return idle / (3 * chunks * microbatches + idle)
