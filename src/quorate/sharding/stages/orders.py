"""The order in which each worker of a pipeline computes: which stage, which pass, which micro-batch.

A model is cut into successive stages, and a batch into micro-batches. A schedule assigns stages to workers ("loop":
worker r of P has r, r + P, r + 2P; "v": r and 2P - 1 - r). It also orders the passes of each micro-batch through each
of its stages: forward, then backward at once or in two parts. Of two parts, the gradient of the input is first and that
of the weights later.

Orders of schedules with several stages a worker are those of torch's classes in `torch.distributed.pipelining`, asked
of the class itself, so that they are exactly what torch runs. GPipe and 1F1B are written here, as torch runs them by
separate code.

Sources: `gpipe`: Huang et al. 2019 (arXiv 1811.06965); `1f1b` and `interleaved-1f1b`: Narayanan et al. 2021 (arXiv
2104.04473); `looped-bfs`: Lamy-Poirier 2023 (arXiv 2211.05953); `interleaved-zero-bubble` and `zbv`: Qi et al. 2024
(arXiv 2401.10241); `dualpipev`: DeepSeek-AI 2024 (arXiv 2412.19437).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from quorate.core.errors import ConfigurationError

FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"
"""Kinds of passes: forward; backward; the gradient of the input only; the gradient of the weights only."""
Placement = Literal["loop", "v"]


class Action(NamedTuple):
    """One pass of one micro-batch through one stage."""

    stage: int
    kind: str
    microbatch: int


Order = Sequence[Sequence[Action]]
"""The actions of each worker, in their order."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The requirements of a schedule."""

    in_torch: str
    """The name of its class."""
    chunks: int | None
    """Stages of a worker; None: two or more, as requested."""
    placement: Placement = "loop"
    is_split: bool = False
    """Whether the backward pass is in two parts; torch's sharded parameters must then not be gathered again between."""
    microbatches_of_stages: bool = False
    """Whether there must be at least as many micro-batches as stages."""
    microbatches_in_rounds: bool = False
    """Whether micro-batches must be a multiple of `max(1, microbatches // workers)`."""


ScheduleName = Literal[
    "gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "interleaved-zero-bubble", "zbv", "dualpipev", "pipedream-2bw"
]  # fmt: skip
DELAYED = "pipedream-2bw"
"""The schedule whose gradients are one batch old: see `stages.delayed`. The others give those of the batch itself."""
SCHEDULES = {
    "gpipe": Schedule(in_torch="ScheduleGPipe", chunks=1),
    "1f1b": Schedule(in_torch="Schedule1F1B", chunks=1, microbatches_of_stages=True),
    "interleaved-1f1b": Schedule(in_torch="ScheduleInterleaved1F1B", chunks=None, microbatches_in_rounds=True),
    "looped-bfs": Schedule(in_torch="ScheduleLoopedBFS", chunks=None),
    "interleaved-zero-bubble": Schedule(
        in_torch="ScheduleInterleavedZeroBubble", chunks=None, is_split=True, microbatches_in_rounds=True
    ),
    "zbv": Schedule(in_torch="ScheduleZBVZeroBubble", chunks=2, placement="v", is_split=True),
    "dualpipev": Schedule(
        in_torch="ScheduleDualPipeV", chunks=2, placement="v", is_split=True, microbatches_of_stages=True
    ),
}


def schedule_named(name: str) -> Schedule:
    """Return a schedule. Raises `ConfigurationError` for an unknown name."""
    if name not in SCHEDULES:
        raise ConfigurationError(f'there is no schedule "{name}"; known: {", ".join([*SCHEDULES, DELAYED])}')
    return SCHEDULES[name]


def refusal(name: str, workers: int, chunks: int, microbatches: int) -> str:
    """Return why `name` cannot be run with these numbers, in one sentence; empty where it can."""
    schedule = schedule_named(name)
    for number, noun in ((workers, "workers"), (chunks, "stages a worker"), (microbatches, "micro-batches")):
        if number < 1:
            return f"a pipeline has {noun} from 1 on, not {number}"
    if schedule.chunks is not None and chunks != schedule.chunks:
        return f"{name} has {_stages(schedule.chunks)} a worker, not {chunks}"
    if schedule.chunks is None and chunks < 2:
        return f"{name} has 2 stages a worker or more, not {chunks}"
    stages = workers * chunks
    if schedule.microbatches_of_stages and microbatches < stages:
        return f"{name} needs a micro-batch for each of {_stages(stages)}, and there are {microbatches}"
    rounds = max(1, microbatches // workers)
    if schedule.microbatches_in_rounds and microbatches % rounds:
        return f"{name} needs micro-batches in {rounds} equal rounds, and there are {microbatches}"
    return ""


def _stages(number: int) -> str:
    return "1 stage" if number == 1 else f"{number} stages"


def owner(stage: int, workers: int, placement: Placement) -> int:
    """Return the worker that has `stage`."""
    turn, place = divmod(stage, workers)
    return workers - 1 - place if placement == "v" and turn % 2 else place


def stages_of(worker: int, workers: int, chunks: int, placement: Placement) -> tuple[int, ...]:
    """Return the stages of `worker`, in order."""
    return tuple(stage for stage in range(workers * chunks) if owner(stage, workers, placement) == worker)


def order(schedule: str, workers: int, chunks: int, microbatches: int) -> tuple[tuple[Action, ...], ...]:
    """Return the actions of each of `workers` in one step, in their order.

    Raises `ConfigurationError` for an unknown schedule, and for numbers that it does not run with. Each stage has, for
    each micro-batch, one "F", and one "B" or one "I" and, later, one "W".
    """
    refused = refusal(schedule, workers, chunks, microbatches)
    if refused:
        raise ConfigurationError(refused)
    if schedule == "gpipe":
        return tuple(tuple(_gpipe(worker, microbatches)) for worker in range(workers))
    if schedule == "1f1b":
        return tuple(tuple(_one_forward_one_backward(worker, workers, microbatches)) for worker in range(workers))
    orders = _in_torch(SCHEDULES[schedule].in_torch, workers, chunks, microbatches)
    return tuple(tuple(_plain(orders[worker])) for worker in range(workers))


def peaks(order: Order) -> tuple[int, ...]:
    """Return how many activations of one stage for one micro-batch each worker holds at most.

    They are held from the forward pass to the gradient of the weights. Between the two parts of a backward pass fewer
    bytes may be needed than these count.
    """
    counts = []
    for actions in order:
        now = most = 0
        for action in actions:
            now += {FORWARD: 1, BACKWARD: -1, WEIGHT: -1}.get(action.kind, 0)
            most = max(most, now)
        counts.append(most)
    return tuple(counts)


@dataclass(frozen=True)
class Layout:
    """The layout of a pipeline."""

    schedule: str
    workers: int
    chunks: int
    """Stages of each worker."""
    microbatches: int
    is_delayed: bool = False
    """Whether gradients are those of the batch before; `schedule` is then that of a call of the model."""
    corrects: bool = False
    """Whether steps are corrected for that delay: see `optim.delay_correction`."""

    @property
    def name(self) -> str:
        """The name of the schedule."""
        return DELAYED if self.is_delayed else self.schedule

    @property
    def stages(self) -> int:
        """The stages of all workers."""
        return self.workers * self.chunks

    def owner(self, stage: int) -> int:
        """Return the worker of a stage."""
        return owner(stage, self.workers, schedule_named(self.schedule).placement)

    def stages_of(self, worker: int) -> tuple[int, ...]:
        """Return the stages of a worker."""
        return stages_of(worker, self.workers, self.chunks, SCHEDULES[self.schedule].placement)

    def order(self, microbatches: int) -> Sequence[Sequence[Action]]:
        """Return the actions of each worker. A batch with too few micro-batches for the schedule goes forward through
        all stages, and then backward."""
        return _order(self, microbatches)


@cache
def _order(layout: Layout, microbatches: int) -> Sequence[Sequence[Action]]:
    if not refusal(layout.schedule, layout.workers, layout.chunks, microbatches):
        return order(layout.schedule, layout.workers, layout.chunks, microbatches)
    return there_and_back(layout, microbatches)


@cache
def there_and_back(layout: Layout, microbatches: int) -> Sequence[Sequence[Action]]:
    """Return the actions of each worker where all micro-batches go forward, and later all of them backward."""
    actions = []
    for worker in range(layout.workers):
        stages, numbers = layout.stages_of(worker), range(microbatches)
        there = [Action(stage, FORWARD, number) for stage in stages for number in numbers]
        back = [Action(stage, BACKWARD, number) for stage in reversed(stages) for number in numbers]
        actions.append([*there, *back])
    return actions


def _gpipe(worker: int, microbatches: int) -> Iterator[Action]:
    """Huang et al., figure 2c: all forward, then all backward, both in order of micro-batches."""
    for kind in (FORWARD, BACKWARD):
        for microbatch in range(microbatches):
            yield Action(worker, kind, microbatch)


def _one_forward_one_backward(worker: int, workers: int, microbatches: int) -> Iterator[Action]:
    """Narayanan et al., figure 4: as many forward as workers follow, then both in turn, then backward."""
    ahead = min(microbatches, workers - 1 - worker)
    yield from (Action(worker, FORWARD, microbatch) for microbatch in range(ahead))
    for microbatch in range(microbatches):
        if ahead + microbatch < microbatches:
            yield Action(worker, FORWARD, ahead + microbatch)
        yield Action(worker, BACKWARD, microbatch)


def _in_torch(name: str, workers: int, chunks: int, microbatches: int) -> dict[int, list[Any]]:
    """`pipeline_order` of torch's class: actions, and None where a worker is meant to idle."""
    from torch.distributed.pipelining import schedules

    base = getattr(schedules, name)
    # What it would derive for messages takes by far the most time, and is not asked for here.
    only_orders = type(name, (base,), {"_prepare_schedule_with_comms": lambda *_: None})
    standing_in = [
        SimpleNamespace(
            group_size=workers, group_rank=0, num_stages=workers * chunks, stage_index=index, is_last=False, submod=None
        )
        for index in range(chunks)
    ]
    made: dict[int, list[Any]] = only_orders(standing_in, microbatches).pipeline_order
    return made


def _plain(actions: Iterable[Any]) -> Iterator[Action]:
    for action in actions:
        if action is None:
            continue
        for step in action.sub_actions or (action,):
            yield Action(step.stage_index, step.computation_type.value, step.microbatch_index)
