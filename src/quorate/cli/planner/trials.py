"""The runs of a script that `quorate plan` starts on this machine: to time its blocks, and to try layouts."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from quorate.cli.options import strategy_from
from quorate.cli.tables import timed_bar
from quorate.core.errors import QuorateError
from quorate.core.resources import usable_cores
from quorate.core.telling import tell
from quorate.launch.local.processes import Conclusion
from quorate.launch.local.verdict import last_lines, log_of
from quorate.launch.run.overrides import Overrides
from quorate.launch.run.requests import status_after
from quorate.launch.warm.alone import SECONDS, measured
from quorate.launch.warm.run_server import RunServer
from quorate.planning.choice import Choice
from quorate.planning.layouts import Layout
from quorate.planning.measured import TIMED_STEPS
from quorate.planning.model import Model
from quorate.planning.tries import STEPS, TURNS, WARM_UP, Tried, candidates, steps_of_a_batch, tried
from quorate.planning.waiting import spread_of
from quorate.report.wording import seconds_in_words

if TYPE_CHECKING:
    from quorate.planning.stepping import Task


_PROGRAM = "quorate.planning.stepping"

T = TypeVar("T")
_ALONE = "quorate.planning.timing"
_IN_PIECES = "quorate.planning.timing_in_pieces"
_LAYOUTS = {"shards": Layout(shards=2, zero=3), "tensor": Layout(tensor=2)}
_LIMIT = round(SECONDS / 6)
_MOST_CROWDED = 4
_MOST_STEPS = 50

_INTERRUPTED = (status_after(signal.SIGINT), status_after(signal.SIGTERM))


def tries(
    server: RunServer,
    ranked: Sequence[Choice],
    most: int,
    script: str,
    arguments: Sequence[str],
    model: Model,
    examples: int,
) -> list[Tried]:
    """Run at most `most` layouts; return them with their times. `examples`: the batch of the script.

    Raises `KeyboardInterrupt` where it was interrupted, and `QuorateError` where no layout could be run.
    """
    predictions = [choice.prediction for choice in ranked]
    count = min(most, len(candidates(predictions)))
    with _Progress(count * TURNS) as progress:
        run = partial(_shown, server, progress, script, arguments, model)
        results = tried(predictions, count, run, lambda layout: steps_of_a_batch(layout, model.batch, examples), TURNS)
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
    from quorate.planning.stepping import Task

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
        self._bar, self._task = timed_bar("trying", runs)

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begins(self, words: str) -> None:
        self._bar.update(self._task, description=words)
        if self._bar.disable:
            tell(f"quorate: trying, {words}\n")

    def ends(self, outcome: Sequence[float] | str) -> None:
        if isinstance(outcome, str):
            tell(f"quorate: failed: {outcome}\n")
            return
        self._bar.advance(self._task)
        if self._bar.disable:
            tell(f"quorate: {seconds_in_words(sorted(outcome)[len(outcome) // 2])} a step\n")


def timed(
    script: str,
    arguments: Sequence[str],
    axes: Collection[str] = tuple(_LAYOUTS),
    at_once: int = 1,
    crowd: float = 1.0,
    *,
    server: RunServer,
) -> dict[str, Any]:
    """Return the answer of `planning.timing`. If this machine has two cores, `pieces` among its times has the
    answers of `timing_in_pieces` with two workers over each of `axes` that the model allows. Raises as `measured`.

    The script runs in `at_once` processes, which share caches and memory; seconds are means. With a `crowd` of more
    than one worker per core it also runs in that many times as many processes. `crowding` is the time of a step there,
    divided by the time that its share of the cores predicts. `spread` is the variation of steps (see
    `planning.waiting.spread_of`), in the crowd if there is one.
    """
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # as workers of `quorate run` have them
    alone = partial(measured, script, arguments, program=_ALONE, steps=TIMED_STEPS, environment=threads)
    count = max(1, min(at_once, usable_cores()))
    each = _several(alone, count)
    answer = each[0]
    answer["times"], seconds = _together(each)
    many = round(count * min(crowd, _MOST_CROWDED))
    if many > count:
        tell(f"quorate: running it {many} times at once\n")
        crowd_times, seconds = _together(_several(alone, many))
        answer["times"]["crowding"] = max(1.0, _step(crowd_times) * count / many / _step(answer["times"]))
    answer["times"]["spread"] = spread_of(seconds)
    pieces = answer["times"]["pieces"] = {}
    if usable_cores() > 1:
        for axis in axes:
            if axis == "tensor" and isinstance(answer["cuts"].get("2", ""), str):
                continue
            tell(f"quorate: running it on two workers, {axis}=2\n")
            # Two workers may have half of the script's batches each, and take longer for a step.
            steps = min(max(TIMED_STEPS - 1, answer["times"]["steps"] // 2), _MOST_STEPS)
            replies = answers(server, _IN_PIECES, partial(_task, axis, steps), script, arguments, _LAYOUTS[axis])
            if isinstance(replies, str):
                tell(f"quorate: {axis}=2 was not timed: {replies}\n")
            else:
                pieces[axis] = replies[0]
    return answer


def _together(each: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[Sequence[float]]]:
    """Return the means of the `times` of runs, and the seconds of the steps of each run."""
    times = [dict(run["times"]) for run in each]
    seconds = [run.pop("seconds", ()) for run in times]
    return mean_of(times), seconds


def _step(times: Mapping[str, Any]) -> float:
    passes = [seconds for both in (*times["blocks"].values(), times["rest"]) for seconds in both]
    return float(sum(passes) + times["update"] + times["outside"])


def _several(does: Callable[[], T], count: int) -> list[T]:
    """Call `does` in `count` threads; return the results. An interrupt ends the threads and all that they started."""
    if count == 1:
        return [does()]
    asked = [Future[T]() for _ in range(count)]

    def answer(future: Future[T]) -> None:
        try:
            future.set_result(does())
        except BaseException as error:
            future.set_exception(error)

    for future in asked:
        Thread(target=answer, args=(future,), daemon=True).start()
    return [future.result() for future in asked]


def mean_of(each: Sequence[Any]) -> Any:
    """Return the mean of equal structures, number by number; of other values, the first."""
    first = each[0]
    if isinstance(first, Mapping):
        return {name: mean_of([item[name] for item in each]) for name in first}
    if isinstance(first, list):
        return [mean_of(group) for group in zip(*each, strict=True)]
    return sum(each) / len(each) if isinstance(first, float) else first


def _task(axis: str, steps: int, folder: str) -> Any:
    from quorate.planning.stepping import Task

    return Task(
        folder=folder, workers=2, warm_up=1, steps=steps, limit=_LIMIT, is_divided=True,
        looks_at_blocks=axis == "tensor",
    )  # fmt: skip


def answers(
    server: RunServer,
    program: str,
    task_in: Callable[[str], Task],
    script: str,
    arguments: Sequence[str],
    layout: Layout,
) -> list[Any] | str:
    """Return the answer of each worker of `program` in this layout, or one line about why there is none.

    Raises `KeyboardInterrupt` where this process was asked to end; then no worker is left.
    """
    from quorate.launch.warm.request import RunRequest
    from quorate.planning.stepping import path_of

    with tempfile.TemporaryDirectory(prefix="quorate-plan-") as name:
        folder, task = Path(name), task_in(name)
        strategy, settings = strategy_from(layout.strategy) if layout.strategy else (None, {})
        overrides = Overrides(
            strategy=strategy, settings=settings, mesh=layout.mesh or None, zero=layout.zero or None,
            log="none",
        )  # fmt: skip
        request = RunRequest(
            script=program, arguments=[task.line(), script, *arguments], is_module=True, overrides=overrides,
            size=layout.workers, folder=folder,
        )  # fmt: skip
        run = server.start(request)
        try:
            ended = run.wait()
        except KeyboardInterrupt:
            run.send(signal.SIGTERM)
            run.wait(request.grace)
            raise
        assert ended is not None
        paths = [path_of(folder, rank) for rank in range(layout.workers)]
        if ended.status in _INTERRUPTED:
            raise KeyboardInterrupt
        if all(path.exists() for path in paths):
            return [json.loads(path.read_text()) for path in paths]
        return _why(ended, folder, script, task)


def _why(ended: Conclusion, folder: Path, script: str, task: Task) -> str:
    """Return why there is no answer, without the folder, which is deleted by then."""
    needed = task.warm_up + task.steps
    if ended.why is None:
        return f"{script} has ended before its optimizer.step() number {needed}"
    if "SIGALRM" in ended.why:
        return f"{script} has made fewer than {needed} steps within {task.limit:g} s"
    said = ended.why.partition("\n")[0].partition("; its log is ")[0].partition("; the logs are in ")[0]
    lines = last_lines(log_of(folder, 0), 1)
    return f"{said}: {lines[0].strip()}" if lines and "raised" not in said and "Error" not in said else said
