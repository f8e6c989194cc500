"""`quorate plan --try`: the most promising layouts as runs of the script on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any

from quorate.cli.doctor.machine import usable_cores
from quorate.cli.doctor.memory import SECONDS
from quorate.cli.planner.options import PlanOptions
from quorate.cli.planner.workers import answers
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.core.telling import tell
from quorate.launch.warm.run_server import RunServer
from quorate.planning.layouts import Layout
from quorate.planning.model import Model
from quorate.planning.prediction import Prediction
from quorate.planning.tries import STEPS, TURNS, WARM_UP, Tried, candidates, steps_of_a_batch, tried
from quorate.report.wording import bytes_in_words, counted, seconds_in_words

_PROGRAM = "quorate.launch.warm.stepping"


def check_tries(options: PlanOptions) -> None:
    """Raise `ConfigurationError` where this machine cannot run the workers of the plan."""
    count, workers = options.tries, options.workers
    assert count is not None and workers is not None and options.memory is not None
    if count < 1:
        raise ConfigurationError(f"--try {count}: at least one layout is tried")
    if options.model.startswith("gpt:"):
        raise ConfigurationError("--try runs a script, and gpt: is none; leave --try out")
    if options.per_host is not None:
        raise ConfigurationError(
            "--try runs the layouts on this machine, and --per-host plans for several hosts; leave one of them out"
        )
    cores = usable_cores()
    if options.cores is not None and options.cores != cores:
        raise ConfigurationError(
            f"--try runs the layouts on this machine, which has {counted(cores, 'core')}, and the plan is for "
            f"--cores {options.cores}"
        )
    if workers > cores and options.cores is None:
        raise ConfigurationError(
            f"--try: {workers} workers do not fit on this machine's {counted(cores, 'core')}; plan for fewer workers, "
            f"or say --cores {cores} if they are to share them"
        )
    here = _memory_here()
    if here is not None and workers * options.memory > here:
        raise ConfigurationError(
            f"--try: {workers} workers of {bytes_in_words(options.memory)} need more memory than this machine's "
            f"{bytes_in_words(here)}; give each worker at most {bytes_in_words(here / workers)}"
        )


def _memory_here() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def tries(
    server: RunServer, ranked: Sequence[Prediction], options: PlanOptions, model: Model, examples: int
) -> list[Tried]:
    """Run `options.tries` layouts; return them with their times. `examples`: the batch of the script.

    Raises `KeyboardInterrupt` where it was interrupted, and `QuorateError` where no layout could be run.
    """
    count = min(options.tries or 0, len(candidates(ranked)))
    with _Progress(count * TURNS) as progress:
        run = partial(_shown, server, progress, options.model, options.arguments, model)
        results = tried(ranked, count, run, lambda layout: steps_of_a_batch(layout, model.batch, examples), TURNS)
    if results[0].seconds is None:
        raise QuorateError(f"no layout could be run; {results[0].foreseen.layout.in_words}: {results[0].why}")
    return results


def _shown(
    server: RunServer,
    progress: _Progress,
    script: str,
    arguments: Sequence[str],
    model: Model,
    layout: Layout,
    turn: int,
) -> Sequence[float] | str:
    progress.begins(f"turn {turn + 1}: {layout.in_words}")
    outcome = steps_of(server, script, arguments, layout, model.begins(layout.stages * layout.chunks))
    progress.ends(outcome)
    return outcome


def steps_of(
    server: RunServer,
    script: str,
    arguments: Sequence[str],
    layout: Layout,
    begins: Sequence[str] = (),
    limit: float = SECONDS / 6,
) -> Sequence[float] | str:
    """Return the seconds of each step of a run, of its slowest worker, or one line about why there are none. If a
    worker has several stages of a pipeline, they begin with the modules `begins`.

    Raises as `answers`.
    """
    from quorate.launch.warm.stepping import Task

    settings: dict[str, Any] = {}
    if layout.schedule:
        settings = {"schedule": layout.schedule, "microbatches": layout.microbatches}
    if layout.chunks > 1:
        settings["stages"] = list(begins)

    def task(folder: str) -> Task:
        return Task(
            folder=folder, workers=layout.workers, warm_up=WARM_UP, steps=STEPS, limit=max(1, round(limit)),
            is_divided=layout.workers > layout.replicas, settings=settings,
        )  # fmt: skip

    outcome = answers(server, _PROGRAM, task, script, arguments, layout)
    return outcome if isinstance(outcome, str) else [max(each) for each in zip(*outcome, strict=True)]


class _Progress:
    def __init__(self, runs: int) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._runs = runs
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)

    def __enter__(self) -> _Progress:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("trying", total=self._runs)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begins(self, words: str) -> None:
        if self._bar is None:
            tell(f"quorate: trying, {words}\n")
        else:
            self._bar.update(self._task, description=words)

    def ends(self, outcome: Sequence[float] | str) -> None:
        if self._bar is not None and not isinstance(outcome, str):
            self._bar.advance(self._task)
        if isinstance(outcome, str):
            tell(f"quorate: failed: {outcome}\n")
        elif self._bar is None:
            tell(f"quorate: {seconds_in_words(sorted(outcome)[len(outcome) // 2])} a step\n")
