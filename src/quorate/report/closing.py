"""The line a run ends with on the console: how much it did, how fast, and who held the others up."""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

from quorate.core.records import ranks_in
from quorate.report.lateness import Skew, skew_of
from quorate.report.meetings import Meetings, meetings_of
from quorate.report.reading import RunRecords, read_run
from quorate.report.throughput import Window, training_seconds, window_of
from quorate.report.time_use import spent_in, waiting_share
from quorate.report.wording import counted, number_in_words, ranks_named, seconds_in_words, share_in_words

MOST_BYTES = 4 << 20
"""Read of all ranks together: a fraction of a second. Of longer runs, the end."""
LEAST_BYTES = 8 << 10
"""Read of each rank however many there are: some 20 steps."""


def closing_line(folder: Path) -> str | None:
    """What is to be said of the run in `folder`; None where no step was recorded.

    `120 steps in 14.2 s (8.40 steps/s, 270 examples/s); rank 3 arrived last in 97% of the steps, 182 ms after the
    first; 61% of the others' time was waiting; records in runs/x`. Who arrives when is said of two workers or more. Of
    a run with long records rates and arrivals are those of its last steps.
    """
    ranks = max(1, len(ranks_in(folder)))
    run = read_run(folder, most_bytes=max(LEAST_BYTES, MOST_BYTES // ranks))
    seconds = training_seconds(run)
    if seconds is None:
        return None
    skipped = _skipped(run)
    warm_up = run.usual_warm_up if skipped is None else skipped
    window = window_of(run, warm_up)
    total = max(one.steps[-1].step for one in run.ranks if one.steps)
    virtual = " of virtual time" if run.is_virtual else ""
    parts = [f"{counted(total, 'step')} in {seconds_in_words(seconds)}{virtual}"]
    if window is not None:
        parts[0] += f" ({_rates(run, window, is_all=skipped is None)})"
    steps = run.after(warm_up)
    meetings = meetings_of(steps)
    skew = skew_of(meetings, steps)
    if skew is not None:
        parts += _waiting(skew, meetings)
    return "; ".join([*parts, f"records in {folder}"])


def _skipped(run: RunRecords) -> int | None:
    """The last step of which not all rows were read; None where all were."""
    gaps = [late.step for one in run.ranks for early, late in pairwise(one.steps) if late.step > early.step + 1]
    return max(gaps, default=None)


def _rates(run: RunRecords, window: Window, *, is_all: bool) -> str:
    at_work = sum(bool(one.steps) for one in run.ranks)
    rates = f"{number_in_words(window.steps / at_work / window.seconds)} steps/s"
    if window.examples_per_second is not None:
        rates += f", {number_in_words(window.examples_per_second)} examples/s"
    return rates if is_all else f"lately {rates}"


def _waiting(skew: Skew, meetings: Meetings) -> list[str]:
    """Who held the others up, and how much that was."""
    slow = [one.rank for one in skew.slow]
    share = waiting_share(one for one in spent_in(meetings) if one.rank not in slow)
    waited = "" if share is None else share_in_words(share)
    if not skew.is_together:
        return [_pace(skew)] if slow else []
    if not slow:
        return ["no rank was slow beyond chance", f"{waited} of the time was waiting for others"]
    often = share_in_words(max(one.last_share for one in skew.slow))
    late = seconds_in_words(statistics.median(one.median for one in skew.slow))
    last = "arrived last" if len(slow) == 1 else "were late, the last ones"
    who = f"{ranks_named(slow, len(skew.ranks))} {last} in {often} of the steps, {late} after the first"
    return [who, f"{waited} of the others' time was waiting"] if waited else [who]


def _pace(skew: Skew) -> str:
    """Where nobody waits."""
    slow = [one.rank for one in skew.slow]
    mine = statistics.median(one.step_median for one in skew.slow)
    others = statistics.median(one.step_median for one in skew.others)
    who = ranks_named(slow, len(skew.ranks))
    return f"{who} took {seconds_in_words(mine)} for a step, {mine / others:.2f} times what the others took"
