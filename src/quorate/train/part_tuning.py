"""The parts of a gradient as they change while training: in the order of arrival, by measured times, or tuned.

All workers form the same sums in the same order, those that pause among them. So a change takes effect before the sum
of an agreed number, and needs no message in a step. In the first steps each worker measures when its gradients are
ready. Before one sum all exchange these times by the board, and measure sums of a few sizes. From then on rank 0
decides. What it decides is on the board before it takes part in the first sum that it holds for.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from quorate.buckets.flat import FIRST_PART_BYTES, PART_BYTES, PART_BYTES_ON_GPU
from quorate.buckets.fusion import Fusion
from quorate.core.contracts import Wire
from quorate.core.vectors import Layout
from quorate.data.context import data_context
from quorate.means.reduction import Reduction
from quorate.observe.backward import observe_backward
from quorate.observe.step_observer import NEVER, Phase, StepObserver
from quorate.observe.stopping import RETRY, stop_of
from quorate.train.part_leader import FREE, Decision, PartLeader
from quorate.train.worker import StrategyWorker
from quorate.tuning.best_parts import LinkCosts, costs_of
from quorate.tuning.choices import Choice
from quorate.wire.current import Place

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

    def __init__(self, worker: StrategyWorker, place: Place, reduction: Reduction) -> None:
        self.optimizer, self._worker, self._place = worker.name, worker, place
        self._settings, self._spending = reduction.settings, observe_backward(place).spending
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
            stop = stop_of(self._place)
            if data_context(self._place).made:
                stop.end("the tuning has ended")
            else:
                stop.ask(RETRY)

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


def begin_part_tuning(worker: StrategyWorker, place: Place, reduction: Reduction) -> None:
    """Arrange the parts of a worker's gradients while training, if its settings say more than their sizes."""
    if reduction.arranges and worker.wire.size > 1 and worker.means.can_be_arranged:
        worker.means.parts = tuning = PartTuning(worker, place, reduction)
        observe_backward(place).add(tuning)
