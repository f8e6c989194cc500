"""The blocks of a script as one process times them, and its passes as two workers do with the model in pieces."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import Any, TypeVar

from quorate.cli.doctor.machine import usable_cores
from quorate.cli.doctor.memory import SECONDS, measured
from quorate.cli.planner.workers import answers
from quorate.core.telling import tell
from quorate.launch.warm.run_server import RunServer
from quorate.launch.warm.steps import STEPS
from quorate.planning.layouts import Layout
from quorate.planning.waiting import spread_of

T = TypeVar("T")
_ALONE = (sys.executable, "-m", "quorate.launch.warm.timing")
_IN_PIECES = "quorate.launch.warm.timing_in_pieces"
_LAYOUTS = {"shards": Layout(shards=2, zero=3), "tensor": Layout(tensor=2)}
_LIMIT = round(SECONDS / 6)
_MOST_CROWDED = 4
_MOST_STEPS = 50


def timed(
    script: str,
    arguments: Sequence[str],
    axes: Collection[str] = tuple(_LAYOUTS),
    at_once: int = 1,
    crowd: float = 1.0,
    *,
    server: RunServer,
) -> dict[str, Any]:
    """Return the answer of `launch.warm.timing`. If this machine has two cores, `pieces` among its times has the
    answers of `timing_in_pieces` with two workers over each of `axes` that the model allows. Raises as `measured`.

    The script runs in `at_once` processes, which share caches and memory; seconds are means. With a `crowd` of more
    than one worker per core it also runs in that many times as many processes: `crowding` is the time of a step there,
    divided by the time that its share of the cores predicts. `spread` is the variation of steps (see
    `planning.waiting.spread_of`), in the crowd if there is one.
    """
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # as workers of `quorate run` have them
    alone = partial(measured, script, arguments, program=_ALONE, steps=STEPS, environment=threads)
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
            steps = min(max(STEPS - 1, answer["times"]["steps"] // 2), _MOST_STEPS)
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
    from quorate.launch.warm.stepping import Task

    return Task(
        folder=folder, workers=2, warm_up=1, steps=steps, limit=_LIMIT, is_divided=True,
        looks_at_blocks=axis == "tensor",
    )  # fmt: skip
