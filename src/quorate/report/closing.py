"""The line a run ends with on the console: how much it did, how fast, and who held the others up."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from quorate.records.exclusion_rows import FAR, NO_WEIGHT
from quorate.records.records import ranks_in
from quorate.records.rows import Step
from quorate.report.figures.goodput import goodput_of, has_failed
from quorate.report.figures.lateness import Skew, skew_of
from quorate.report.figures.rounds import RoundFigures, figures_of_rounds
from quorate.report.figures.throughput import Window, training_seconds, window_of
from quorate.report.figures.time_use import Spent, bubble_share, spent_in, waiting_share
from quorate.report.reading.exclusions import left_out_of
from quorate.report.reading.joinings import comparable, joined_in_words
from quorate.report.reading.meetings import meetings_of
from quorate.report.reading.rounds import last_arrivals, wait_for_all
from quorate.report.reading.run import RunRecords, read_run
from quorate.report.wording import (
    counted,
    number_in_words,
    range_in_words,
    ranks_named,
    seconds_in_words,
    share_in_words,
)

MOST_BYTES = 4 << 20
"""Read of all ranks together: a fraction of a second. Of longer runs, the end."""
_NAMED = 4
"""Changes of the quorum, workers that died, and workers that joined, at most."""
_OFTEN = 0.01
"""Share of means from which on it is told who was left out of them."""
LEAST_BYTES = 8 << 10
"""Read of each rank however many there are: some 20 steps."""


def closing_line(folder: Path) -> str | None:
    """What is to be said of the run in `folder`; None where no step was recorded.

    `120 steps in 14.2 s (8.40 steps/s, 270 examples/s); rank 3 arrived last in 97% of the steps, 182 ms after the
    first; 61% of the others' time was waiting; records in runs/x`. Who arrives when is said of two workers or more.
    Under a quorum it says what that cost and gained: `412 rounds, 2.3 of 4 workers in each, 61% fresh, effective batch
    74; 14% of the time was waiting (in step it would have been 43%)`, and where the quorum changed on the way, to what.
    Where workers have failed it says the goodput. Of a run with long records all but the numbers of steps and rounds is
    of its last steps.
    """
    ranks = max(1, len(ranks_in(folder)))
    run = read_run(folder, most_bytes=max(LEAST_BYTES, MOST_BYTES // ranks))
    seconds = training_seconds(run)
    if seconds is None:
        return None
    merged = run.merged()
    is_all = not _keep_ends(run)
    warm_up = run.usual_warm_up if is_all else 0
    window = window_of(run, warm_up)
    total = max(one.steps[-1].step for one in run.ranks if one.steps)
    virtual = " of virtual time" if run.is_virtual else ""
    parts = [f"{counted(total, 'step')} in {seconds_in_words(seconds)}{virtual}"]
    if window is not None:
        parts[0] += f" ({_rates(window, is_all=is_all)})"
    steps = run.after(warm_up)
    met = comparable(steps, run.newcomers, [one.distributed for one in run.ranks])
    meetings = meetings_of(met, is_together=wait_for_all(merged) if merged else None)
    warm = run.warm(warm_up)
    skew = skew_of(meetings, steps, warm, run.newcomers)
    spent = spent_in(meetings, last_arrivals(merged) if merged else None)
    rounds = figures_of_rounds(merged, run.size, window, warm, spent, run.newcomers)
    if rounds is not None:
        parts.append(_rounds(rounds))
    if skew is not None:
        parts += _waiting(skew, spent)
    if rounds is not None and not meetings.is_together:
        parts += _gained(rounds)
    parts += _bubbles(steps)
    parts += _left_out(run) if is_all else []
    parts += [f"rank {one.rank} died after update {one.round}, and {one.left} went on" for one in run.deaths[:_NAMED]]
    parts += [joined_in_words(*one) for one in run.replacements[:_NAMED]]
    if is_all and has_failed(run):
        parts += _goodput(run)
    return "; ".join([*parts, f"records in {folder}"])


def _keep_ends(run: RunRecords) -> bool:
    """Where not all rows were read, leave only steps from which on those of every rank are known; whether it was so.

    The last step of every rank stays, whenever it was.
    """
    gaps = [next_ for one in run.ranks for early, next_ in pairwise(one.steps) if next_.step > early.step + 1]
    since = max((step.begin for step in gaps), default=None)
    if since is None:
        return False
    for one in run.ranks:
        one.steps[:-1] = [step for step in one.steps[:-1] if step.begin >= since]
    return True


def _rates(window: Window, *, is_all: bool) -> str:
    rates = f"{number_in_words(window.steps / window.workers / window.seconds)} steps/s"
    if window.examples_per_second is not None:
        rates += f", {number_in_words(window.examples_per_second)} examples/s"
    return rates if is_all else f"lately {rates}"


def _rounds(rounds: RoundFigures) -> str:
    """What the updates were made of."""
    batch, workers = rounds.effective_batch, range_in_words(*rounds.live)
    said = (
        f"{counted(rounds.count, 'round')}, {rounds.contributors_mean:.1f} of {workers} workers in each, "
        f"{share_in_words(rounds.fresh_share)} fresh"
    )
    said = said if batch is None else f"{said}, effective batch {number_in_words(batch)}"
    quorums = [str(one.settings["wait_for"]) for one in rounds.changed if one.settings and "wait_for" in one.settings]
    if not quorums:
        return said
    first = f"{len(quorums)} changes, the last to" if len(quorums) > _NAMED else "changed to"
    return f"{said}; the quorum: {first} {', then '.join(quorums[-1:] if len(quorums) > _NAMED else quorums)}"


def _gained(rounds: RoundFigures) -> list[str]:
    """What waiting was left, of what there would have been."""
    if rounds.waiting is None:
        return []
    waited = f"{share_in_words(rounds.waiting)} of the time was waiting"
    if rounds.waiting_in_step is None:
        return [waited]
    return [f"{waited} (in step it would have been {share_in_words(rounds.waiting_in_step)})"]


def _goodput(run: RunRecords) -> list[str]:
    """What failures have left of the steps that could have been made."""
    found = goodput_of(run)
    if found is None:
        return []
    lost = f" ({found.lost:.0f} of {counted(round(found.made), 'step')} were lost)" if found.lost >= 1 else ""
    return [f"goodput {share_in_words(found.share)}{lost}"]


def _left_out(run: RunRecords) -> list[str]:
    """Whose gradients did not count in many of the means; that a rule chose others says nothing of them."""
    found, sums = left_out_of(run)
    told = [one for one in found if one.why != NO_WEIGHT and one.count >= _OFTEN * sums]
    return [
        f"rank {one.rank}'s gradients were {'far off' if one.why == FAR else one.why} in "
        f"{share_in_words(one.count / sums)} of the means"
        for one in sorted(told, key=lambda one: -one.count)[:_NAMED]
    ]


def _bubbles(steps: Mapping[int, Sequence[Step]]) -> list[str]:
    """How long the workers of pipelines waited for other stages."""
    shares = [share for own in steps.values() if (share := bubble_share(own)) is not None]
    if not shares:
        return []
    least, most = share_in_words(min(shares)), share_in_words(max(shares))
    return [f"stages waited for each other {least if least == most else f'{least} to {most}'} of the time"]


def _waiting(skew: Skew, spent: Sequence[Spent]) -> list[str]:
    """Who held the others up, and how much that was."""
    slow = [one.rank for one in skew.slow]
    share = waiting_share(one for one in spent if one.rank not in slow)
    waited = "" if share is None else share_in_words(share)
    if not skew.is_together:
        return [_pace(skew)] if slow else []
    if not slow:
        return ["no rank was significantly slower", f"{waited} of the time was waiting for others"]
    often = share_in_words(max(one.last_share for one in skew.slow))
    late = seconds_in_words(statistics.median(one.median for one in skew.slow))
    last = "arrived last" if len(slow) == 1 else "were late, the last ones"
    who = f"{ranks_named(slow, len(skew.ranks))} {last} in {often} of the steps, {late} after the first"
    return [who, f"{waited} of the others' time was waiting"] if waited else [who]


def _pace(skew: Skew) -> str:
    """Where not everybody waits for everybody."""
    slow = [one.rank for one in skew.slow]
    mine = statistics.median(one.busy_median for one in skew.slow)
    others = statistics.median(one.busy_median for one in skew.others)
    who = f"{ranks_named(slow, len(skew.ranks))} {'was' if len(slow) == 1 else 'were'}"
    return f"{who} at work on a step for {seconds_in_words(mine)}, {mine / others:.2f} times as long as the others"
