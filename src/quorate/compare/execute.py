"""`execute`: the runs of a comparison, one after the other; failed runs do not end it."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from quorate.compare.grid import (
    Cell,
    best_factor,
    final_cells,
    outcome_of,
    request_of,
    set_aside,
    steps_of,
    tuning_cells,
)
from quorate.compare.plan import WARM_UP_STEPS, Comparison
from quorate.launch.local.process_group import GRACE, LAST_CALL
from quorate.launch.local.processes import Conclusion
from quorate.launch.run.folder import write_outcome, write_run
from quorate.launch.run.requests import ASKS
from quorate.launch.warm.run_server import Run, RunServer

TIMED_OUT = 124
"""The exit status of a run that was ended because it took too long; the same as that of `timeout`."""
LOOK_EVERY = 0.2
"""Seconds between two looks at a run."""
PATIENCE = GRACE + LAST_CALL + 2.0
"""Seconds that a run has to end once it is asked to; then its launcher is killed, and its workers with it."""
_WARM_UP_SHARE = 0.1


class Interrupt:
    """The number of requests to stop. A signal handler may call `ask`."""

    def __init__(self) -> None:
        self.asked = 0
        self.signum = int(signal.SIGINT)
        """The signal of the first request."""

    def ask(self, signum: int = signal.SIGINT) -> None:
        if not self.asked:
            self.signum = signum
        self.asked += 1


@contextlib.contextmanager
def asking(interrupt: Interrupt) -> Iterator[None]:
    """Inside, signals that ask this process to end ask the run under way to end."""
    with contextlib.ExitStack() as stack:
        for signum in ASKS:
            if signal.getsignal(signum) is not signal.SIG_IGN:  # as after nohup
                before = signal.signal(signum, lambda number, frame: interrupt.ask(number))
                stack.callback(signal.signal, signum, before)
        yield


class Watcher(Protocol):
    """The interface of an observer of a comparison."""

    def plans(self, cells: Sequence[Cell]) -> None:
        """Handle the list of runs, in their order."""

    def begins(self, cell: Cell, folder: Path) -> None:
        """Handle the begin of a run."""

    def looks(self, cell: Cell, folder: Path) -> None:
        """Handle a run under way; called every `LOOK_EVERY` seconds."""

    def ends(self, cell: Cell, folder: Path, ended: Conclusion, seconds: float) -> None:
        """Handle the end of a run: by itself, or because it took too long."""

    def chooses(self, arm: str, factor: float | None) -> None:
        """Handle the chosen learning rate of an arm; None where every trial failed."""


@dataclass(frozen=True)
class Executed:
    """The result of executing a comparison."""

    plan: Comparison
    statuses: Sequence[int]
    """The exit status of every run that has ended, earlier ones included."""
    is_interrupted: bool


def execute(
    plan: Comparison, folder: Path, command: Sequence[str], server: RunServer, watcher: Watcher, interrupt: Interrupt
) -> Executed:
    """Execute the missing runs of the comparison in `folder`, the search for learning rates first.

    A run that fails, hangs or is killed has failed, and the others go on. Once `interrupt` is asked, the run under way
    is interrupted, and left unfinished, without `outcome.json`; a new attempt sets its folder aside. `command` is that
    of the comparison, for `run.json`. Raises `OSError` where the folder cannot be written to.
    """
    tuning, final = tuning_cells(plan), final_cells(plan)
    watcher.plans([cell for cell in (*tuning, *final) if outcome_of(folder / cell.folder) is None])
    runner = _Runner(folder, command, server, watcher, interrupt)
    runner.run(plan, tuning)
    if tuning and not interrupt.asked:
        plan = _with_learning_rates(plan, folder, watcher)
        plan.rewrite(folder)
        final = final_cells(plan)
    runner.run(plan, final)
    plan = _with_warm_up(plan, [folder / cell.folder for cell in final])
    plan.rewrite(folder)
    statuses = [outcome_of(folder / cell.folder) for cell in (*tuning, *final)]
    return Executed(plan, [status for status in statuses if status is not None], interrupt.asked > 0)


@dataclass(frozen=True)
class _Runner:
    folder: Path
    command: Sequence[str]
    server: RunServer
    watcher: Watcher
    interrupt: Interrupt

    def run(self, plan: Comparison, cells: Sequence[Cell]) -> None:
        """Run `cells` in order, but for those that have ended before, until a request to stop."""
        for cell in cells:
            if self.interrupt.asked:
                return
            if outcome_of(self.folder / cell.folder) is None:
                self._run(plan, cell)

    def _run(self, plan: Comparison, cell: Cell) -> None:
        place = self.folder / cell.folder
        set_aside(place)
        request = request_of(plan, cell, place)
        about = {"command": list(self.command), **request.as_json(plan.omp_threads), **_said_of(plan)}
        write_run(place, Path(request.script), about)
        self.watcher.begins(cell, place)
        run = self.server.start(request)
        began = time.monotonic()
        ended = self._attend(plan, cell, run, began)
        seconds = time.monotonic() - began
        if ended is None:
            return
        if ended.status == 0 or ended.why is None:
            write_outcome(place, ended.status, seconds)
        else:
            write_outcome(place, ended.status, seconds, ended.why.partition("\n")[0])
        self.watcher.ends(cell, place, ended, seconds)

    def _attend(self, plan: Comparison, cell: Cell, run: Run, began: float) -> Conclusion | None:
        """Return the end of the run; None where it was interrupted."""
        asked, is_late, give_up = 0, False, math.inf
        while (ended := run.wait(LOOK_EVERY)) is None:
            now = time.monotonic()
            if asked < self.interrupt.asked:
                asked += 1
                run.send(signal.SIGINT)
                give_up = min(give_up, now + PATIENCE)
            elif not asked and not is_late and now - began > plan.timeout:
                is_late = True
                run.send(signal.SIGTERM)
                give_up = now + PATIENCE
            if now > give_up:
                run.send(signal.SIGKILL)
                give_up = math.inf
            self.watcher.looks(cell, self.folder / cell.folder)
        if asked and ended.status != 0:
            return None
        if is_late:
            return Conclusion(TIMED_OUT, f"it had not ended after {plan.timeout:g} seconds, the limit of --timeout")
        return ended


def _said_of(plan: Comparison) -> dict[str, object]:
    """Return the facts of the comparison for a run's own page: the subject, the metric and the target."""
    metric = None if plan.metric is None else asdict(plan.metric)
    scale = {"scale": plan.scale, "price": plan.price} if plan.scale else {}
    return {"subject": asdict(plan.subject), "metric": metric, "target": plan.target, **scale}


def _with_learning_rates(plan: Comparison, folder: Path, watcher: Watcher) -> Comparison:
    chosen = {}
    for arm in plan.arms:
        factor = best_factor(plan, arm, folder)
        watcher.chooses(arm.name, factor)
        if factor is not None:
            chosen[arm.name] = factor
    return replace(plan, chosen_learning_rates=chosen)


def _with_warm_up(plan: Comparison, folders: Sequence[Path]) -> Comparison:
    """Return the plan with a warm-up, equal for all, of at most a tenth of the shortest run that ended well."""
    shortest = min((steps_of(folder) for folder in folders if outcome_of(folder) == 0), default=0)
    return replace(plan, warm_up_steps=min(WARM_UP_STEPS, int(_WARM_UP_SHARE * shortest)))
