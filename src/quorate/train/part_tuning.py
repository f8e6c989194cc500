"""The parts of a gradient as they change while training: in the order of arrival, by measured times, or tuned.

All workers form the same sums in the same order, those that pause among them. So a change takes effect before the sum
of an agreed number, and needs no message in a step. In the first steps each worker measures when its gradients are
ready. Before one sum all exchange these times by the board, and measure sums of a few sizes. From then on rank 0
decides. What it decides is on the board before it takes part in the first sum that it holds for.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from quorate.buckets.flat import FIRST_PART_BYTES, PART_BYTES, PART_BYTES_ON_GPU, Fusion
from quorate.core.contracts import Wire
from quorate.core.fields import Fields
from quorate.core.vectors import Layout
from quorate.data.context import DataContext
from quorate.means.reduction import Reduction, ReductionSettings
from quorate.observe.step_observer import NEVER, Observers, Phase, Spending, StepObserver
from quorate.observe.stopping import RETRY, Stop
from quorate.records.choice_rows import Tuned
from quorate.train.worker import StrategyWorker
from quorate.tuning.account import candidates, middle, sentences
from quorate.tuning.best_parts import LinkCosts, costs_of
from quorate.tuning.choices import Choice, Profile, profile_of
from quorate.tuning.decision import Pair, left_band
from quorate.tuning.proposals import proposer_of
from quorate.tuning.tuner import Outcome, Trial, Tuner

WARM_UP, MEASURED, STEPS = 3, 8, 200
"""Sums before ready times are measured, sums of which they are, and steps after which a tuning has ended."""
LOOKS_EVERY = 2000
"""Sums after which a tuned training measures again."""
SAMPLES = ((1 << 10, 5), (1 << 16, 5), (1 << 19, 3), (1 << 22, 3))
"""Bytes of the sums that are measured, and their number."""
TOGETHER = 8
"""Sums at once by which the gap between them is measured."""


class PartTuning(StepObserver):
    """Arranges the parts of one optimizer's gradients; its means call it before each sum."""

    phase = Phase.RECORD

    def __init__(
        self, worker: StrategyWorker, spending: Spending, stop: Stop, data: DataContext, reduction: Reduction
    ) -> None:
        self.optimizer, self._worker, self._stop, self._data = worker.name, worker, stop, data
        self._settings, self._spending = reduction.settings, spending
        self._changes = bool(self._settings.autotune or {"part_order", "part_layout"} & reduction.parts.keys())
        """Whether more is to be done than to begin as the settings say."""
        self._sums, self._prepared, self._decisions, self._began = 0, -1, 0, 0
        """Sums that were launched, the sum that is prepared, decisions that were read, and the sum before which the
        present tuning began."""
        self._step_began, self._ready_numbers = 0.0, 0
        self._times: list[list[float]] = []
        """For each parameter, while that is measured, the seconds from the beginning of a step to its gradient."""
        self._newest: list[float | None] = []
        """For each parameter, these seconds in the present step, in its last backward pass."""
        self._hooks = list[RemovableHandle]()
        self._restart()

    # -- means.watches.PartSchedule

    def before_sum(self) -> None:
        """Arrange the parts of the next sum; called once or several times before each sum."""
        if self._prepared == self._sums:
            return
        self._prepared, self._step_began = self._sums, self._worker.timer.begin
        if self._worker.means is not self._means:
            self._restart()
        while self._sums == self._due_at:
            self._stage()
        if self._trial is not None:
            self._use(self._trial if (self._sums - self._first) % 2 else self._default, keeps=True)

    def sum_begins(self) -> None:
        """Count a sum that is launched."""
        self._sums += 1
        for times, seconds in zip(self._times, self._newest, strict=True):
            if seconds is not None:
                times.append(seconds)
        self._newest = [None] * len(self._times)

    # -- observe.step_observer.StepObserver

    def forward_ended(self, losses: Any) -> None:
        self._ready_numbers = 0

    def backward_ended(self) -> None:
        if self._trial is not None and self._sums == self._prepared + 1:
            seconds = self._worker.wire.clock.now() - self._step_began
            self._leader.ends.setdefault(self._used, []).append(seconds)

    def step_ended(self) -> None:
        if self._trial is None:
            return
        if self._sums == self._prepared + 1 and not self._worker.means.some_away:
            self._leader.seconds[self._prepared] = self._worker.timer.begin - self._step_began
        if self._sums == self._due_at and self._worker.rank == 0:
            self._write(self._leader.decided(self._first, self._due_at))

    # -- stages

    def _restart(self) -> None:
        """Begin with the default: for the first time, or as other parameters are trained from here on."""
        settings, layout = self._settings, self._worker.replica.layout
        is_on_cpu = layout.parts[-1].device.type == "cpu"
        self._default = self._used = Choice(
            part_bytes=settings.part_bytes or (PART_BYTES if is_on_cpu else PART_BYTES_ON_GPU),
            first_part_bytes=settings.first_part_bytes or FIRST_PART_BYTES,
            part_overlap=settings.part_overlap,
            part_channels=settings.part_channels,
        )
        self._means, self._leader = self._worker.means, PartLeader(self._default, settings, STEPS - WARM_UP - MEASURED)
        self._layouts: dict[Choice, Layout] = {self._default: layout}
        self._trial: Choice | None = None
        """The choice that is tried in every other sum."""
        for hook in self._hooks:
            hook.remove()
        self._first, self._hooks, self._times, self._newest = self._sums, [], [], []
        self._decisions += 1  # one that is written may hold for sums that are not formed
        self._arrange(keeps=False)
        self._due_at, self._stage = self._sums + WARM_UP if self._changes else -1, self._begin_measuring
        self.due = NEVER

    def _begin_measuring(self) -> None:
        self._times, self._newest = (
            [[] for _ in self._worker.replica.trained],
            [None] * len(self._worker.replica.trained),
        )
        numbers = [p.numel() for p in self._worker.replica.trained]
        total, clock, self._ready_numbers = max(1, sum(numbers)), self._worker.wire.clock, 0

        def hook_of(index: int) -> Callable[[Tensor], None]:
            def note(parameter: Tensor) -> None:
                if self._spending.is_modelled:
                    self._ready_numbers += numbers[index]
                    self._spending.backward_has_done(self._ready_numbers / total)
                self._newest[index] = clock.now() - self._step_began

            return note

        self._hooks = [
            p.register_post_accumulate_grad_hook(hook_of(index)) for index, p in enumerate(self._worker.replica.trained)
        ]
        self.due, self._began = 0, self._sums
        self._due_at, self._stage = self._sums + MEASURED, self._meet

    def _meet(self) -> None:
        """Exchange ready times, and measure sums, on all workers before the same sum."""
        for hook in self._hooks:
            hook.remove()
        wire, layout = self._worker.wire, self._worker.replica.layout
        prefix = f"{wire.name}/parts/ready/{self._sums}/"
        medians = [statistics.median(times) if times else None for times in self._times]
        self._times, self._newest = [], []
        known = [time for time in medians if time is not None]
        own = [max(known) if time is None else time for time in medians] if known else None
        wire.board.set(f"{prefix}{wire.rank}", json.dumps(own).encode())
        needs_costs = self._settings.autotune or self._settings.part_layout == "measured"
        costs = sampled_costs(wire, layout.parts[-1].device) if needs_costs else FREE
        if wire.rank == 0:
            keys = [f"{prefix}{rank}" for rank in range(wire.size)]
            wire.board.wait(keys)
            ready = [json.loads(text or b"null") for text in wire.board.get_all(keys)]
            wire.board.delete(prefix)
            self._write(self._leader.planned(ready, costs, layout))
        self._due_at, self._stage = self._sums, self._follow

    def _write(self, decision: Decision) -> None:
        self._worker.wire.board.set(self._key_of(self._decisions), decision.to_bytes())

    def _key_of(self, number: int) -> str:
        return f"{self._worker.wire.name}/parts/decision/{number}/"

    def _follow(self) -> None:
        """Do what rank 0 has decided for the next sums."""
        wire, key = self._worker.wire, self._key_of(self._decisions)
        if wire.rank == 0 and wire.board.get(key) is None:  # it takes part in sums without stepping
            self._write(self._leader.decided(self._first, self._due_at))
        wire.board.wait([key])
        decision, self._decisions = Decision.from_bytes(wire.board.get(key) or b""), self._decisions + 1
        if wire.rank == 0:
            wire.board.delete(self._key_of(self._decisions - 2))  # all have formed a sum since they read it
        self._trial, self._first = None, self._sums
        if decision.again:
            self._due_at, self._stage = self._sums + WARM_UP, self._begin_measuring
            return
        choice = Choice.read(decision.choice)
        if choice not in self._layouts:
            names = self._worker.replica.names
            fusion = Fusion(order=tuple(names[index] for index in decision.order), ends=tuple(decision.ends))
            self._layouts[choice] = self._worker.replica.laid_out_by(fusion)
        if decision.pairs:
            self._trial, self._due_at = choice, self._sums + 2 * decision.pairs
        else:
            self._settle(choice)

    def _settle(self, choice: Choice) -> None:
        self._use(choice, keeps=False)
        self._layouts = {key: self._layouts[key] for key in (self._default, choice)}
        self.due, self._due_at = NEVER, -1
        self._record()
        if self._settings.autotune:
            self._due_at, self._stage = self._sums + LOOKS_EVERY, self._begin_measuring
        if self._settings.autotune == "only":
            if self._data.made:
                self._stop.end("the tuning has ended")
            else:
                self._stop.ask(RETRY)

    def _record(self) -> None:
        worker, recorder = self._worker, self._worker.timer.recorder
        if worker.rank == 0 and recorder is not None:
            steps = self._sums - self._began + WARM_UP
            about = {"step": worker.step, "time": worker.wire.clock.now(), "optimizer": worker.name, "steps": steps}
            row = self._leader.row(about)
            if row is not None:
                recorder.write(row)

    def _use(self, choice: Choice, *, keeps: bool) -> None:
        """Form the next sums as `choice` says; with `keeps` those after them may be as before."""
        if choice != self._used:
            self._used = choice
            self._arrange(keeps=keeps)

    def _arrange(self, *, keeps: bool) -> None:
        choice = self._used
        how: dict[str, Any] = {"overlaps": choice.part_overlap, "channels": choice.part_channels}
        self._means.arrange(self._layouts[choice], keeps=keeps, **how)


def sampled_costs(wire: Wire, device: torch.device) -> LinkCosts:
    """Return the costs of sums, from the least seconds of several sizes, as other programs only add to them.

    All workers call this. The gap between sums is that of several small ones at once.
    """
    channel = wire.channel("samples of parts")

    def seconds(nbytes: int, together: int, count: int) -> float:
        vectors, times = [torch.zeros(nbytes // 4, device=device) for _ in range(together)], list[float]()
        for _ in range(count + 1):  # the first one makes connections
            begin = wire.clock.now()
            works = [channel.all_reduce(x) for x in vectors]
            for x, work in zip(vectors, works, strict=True):
                work.wait()
                if x.device.type != "cpu":
                    wire.on_host(x[:1]).wait()
            times.append(wire.clock.now() - begin)
        return max(min(times[1:]), 1e-9)

    samples = [(nbytes, seconds(nbytes, 1, count)) for nbytes, count in SAMPLES]
    (smallest, least), (_, count) = samples[0], SAMPLES[0]
    return costs_of(samples, max(0.0, seconds(smallest, TOGETHER, count) - least) / (TOGETHER - 1))


def begin_part_tuning(
    worker: StrategyWorker, watching: Observers, stop: Stop, data: DataContext, reduction: Reduction
) -> None:
    """Arrange the parts of a worker's gradients while training, if its settings say more than their sizes."""
    if reduction.arranges and worker.wire.size > 1 and worker.means.can_be_arranged:
        worker.means.parts = tuning = PartTuning(worker, watching.spending, stop, data, reduction)
        watching.add(tuning)


BAND = 2.0
"""The factor by which latency, bandwidth or skew change before parts are tuned again."""
LEAST_SKEW = 0.1
"""The share of the backward pass below which a skew is none."""
FREE = LinkCosts(0.0, math.inf)
"""The costs of sums where they are not measured."""


@dataclass(frozen=True)
class Decision(Fields):
    """The parts of the next sums."""

    choice: dict[str, Any]
    order: list[int]
    """The numbers of the tensors in the order in which they are sent."""
    ends: list[int]
    pairs: int = 0
    """Pairs of sums, with the default and with this choice in turn; 0: the choice holds for all further sums."""
    again: bool = False
    """Whether ready times are measured again, as some worker has none."""


class PartLeader:
    """Decides for all workers. `seconds` and `ends` are filled by the worker that it belongs to."""

    def __init__(self, default: Choice, settings: ReductionSettings, steps: int) -> None:
        """`steps` is the most that a tuning may take after its times were measured."""
        self._default, self._settings, self._steps = default, settings, steps
        self.seconds: dict[int, float] = {}
        """By number of a sum, the seconds of its step, if it was a step like others."""
        self.ends: dict[Choice, list[float]] = {}
        """By choice, seconds from the beginning of the step to the end of the exchange."""
        self._profile: Profile | None = None
        self._tuner: Tuner | None = None
        self._running: Trial | None = None
        self._choice = default

    def planned(self, ready: Sequence[Sequence[float] | None], costs: LinkCosts, layout: Layout) -> Decision:
        """Return what follows from the ready times of each worker, and the costs of sums."""
        known = [times for times in ready if times is not None]
        if len(known) < len(ready):
            return Decision(choice={}, order=[], ends=[], again=True)
        sizes = [s.numel * layout.parts[s.part].dtype.itemsize for s in layout.segments]
        before, now = self._profile, profile_of(known, sizes, costs)
        if before is not None and not _is_out_of_band(before, now):
            return self._decision(self._choice, before)
        self._profile, self._choice, self.ends = now, self._default, {}
        if not self._settings.autotune:
            how: dict[str, Any] = {"part_order": self._settings.part_order, "part_layout": self._settings.part_layout}
            self._choice = replace(self._default, **how)
            return self._decision(self._choice, now)
        self._tuner, self._running = Tuner(self._default, now, proposer_of(self._default, now), self._steps), None
        return self.decided(0, 0)

    def decided(self, first: int, end: int) -> Decision:
        """Return what follows the trial that had the sums from `first` up to `end`."""
        tuner, profile = self._tuner, self._profile
        assert tuner is not None and profile is not None
        if self._running is not None:
            tuner.measured(self._running, [self._pair(number) for number in range(first, end, 2)])
        self.seconds.clear()
        self._running = tuner.trial()
        if self._running is not None:
            return self._decision(self._running.choice, profile, self._running.pairs)
        self._choice = tuner.outcome().choice
        return self._decision(self._choice, profile)

    def _pair(self, first: int) -> Pair | None:
        default, own = self.seconds.get(first, 0.0), self.seconds.get(first + 1, 0.0)
        return (default, own) if default > 0 and own > 0 else None

    @staticmethod
    def _decision(choice: Choice, profile: Profile, pairs: int = 0) -> Decision:
        order, ends = list(profile.order_of(choice)), list(profile.ends_of(choice))
        return Decision(choice=choice.header(), order=order, ends=ends, pairs=pairs)

    def row(self, about: Mapping[str, Any]) -> Tuned | None:
        """Return the row of a choice that was made since the last call, with what it is `about`; None without one."""
        profile, tuner = self._profile, self._tuner
        if profile is None or (self._settings.autotune and tuner is None):
            return None
        self._tuner = None
        outcome = Outcome(self._choice, None, None) if tuner is None else tuner.outcome()
        rate = profile.costs.bandwidth
        return Tuned(
            **about,
            latency=profile.costs.latency,
            gap=profile.costs.occupied,
            bandwidth=None if math.isinf(rate) else rate,
            skew=profile.skew,
            ready=max(profile.ready),
            predicted=profile.predicted(self._default),
            measured=middle(self.ends, self._default),
            parts=len(profile.ends_of(self._default)),
            refused=0 if tuner is None else tuner.refused,
            tried=[] if tuner is None else candidates(tuner, outcome, self.ends),
            settings=self._choice.other_than(self._default),
            why=sentences(profile, tuner, outcome, self._default),
        )


def _is_out_of_band(before: Profile, now: Profile) -> bool:
    least = LEAST_SKEW * max(before.ready)
    return (
        left_band(before.costs.latency, now.costs.latency, BAND)
        or left_band(1 / before.costs.bandwidth, 1 / now.costs.bandwidth, BAND)
        or left_band(max(before.skew, least), max(now.skew, least), BAND)
    )
