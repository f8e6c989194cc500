"""The line a run ends with on the console: its steps, its speed, and the ranks that held the others up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from quorate.records.records import ranks_in
from quorate.records.rows import FAR, NO_WEIGHT, Gone, Joined, Step
from quorate.report.figures.goodput import goodput_of, has_failed
from quorate.report.figures.lateness import Skew, slow_ranks_in_words
from quorate.report.figures.rounds import RoundFigures
from quorate.report.figures.run import MeasuredRun
from quorate.report.figures.throughput import Window, training_seconds
from quorate.report.figures.time_use import Spent, bubble_share, share_of
from quorate.report.reading.run import RunRecords, left_out_of, read_run
from quorate.report.wording import (
    counted,
    number_in_words,
    range_in_words,
    rate_in_words,
    seconds_in_words,
    share_in_words,
)

MOST_BYTES = 4 << 20
"""The most bytes read of all ranks together, in a fraction of a second. Of longer runs, the end is read."""
_NAMED = 4
"""The most changes of the quorum, workers that died, and workers that joined."""
_OFTEN_LOADING, _STEPS_OF_LOADING = 0.1, 30
"""The share of a rank's time from which on its waiting for data is said, and the steps without which it is not."""
_OFTEN = 0.01
"""The share of means from which on a rank left out of them is named."""
LEAST_BYTES = 8 << 10
"""Bytes read of each rank however many there are: some 20 steps."""


def closing_line(folder: Path) -> str | None:
    """Return the closing line of the run in `folder`; None if no step was recorded.

    `120 steps in 14.2 s (8.40 steps/s, 270 examples/s); rank 3 arrived last in 97% of the steps, 182 ms after the
    first; 61% of the others' time was waiting; records in runs/x`. Two workers or more have a part about arrivals.
    Under a quorum, its cost and gain: `412 rounds, 2.3 of 4 workers in each, 61% fresh, effective batch 74; 14% of the
    time was waiting, 43% if all had waited`, and the later quorums where it changed. After failures, the goodput. Of a
    run with long records, all but the numbers of steps and rounds are of its last steps.
    """
    ranks = max(1, len(ranks_in(folder)))
    run = read_run(folder, most_bytes=max(LEAST_BYTES, MOST_BYTES // ranks))
    seconds = training_seconds(run)
    if seconds is None:
        return None
    merged = run.merged()
    is_all = not _keep_ends(run)
    measured = MeasuredRun(run, run.usual_warm_up if is_all else 0, merged=merged)
    total = max(rank.steps[-1].step for rank in run.ranks if rank.steps)
    virtual = " of virtual time" if run.is_virtual else ""
    parts = [f"{counted(total, 'step')} in {seconds_in_words(seconds)}{virtual}"]
    if measured.window is not None:
        parts[0] += f" ({_rates(measured.window, is_all=is_all)})"
    rounds = measured.rounds
    if rounds is not None:
        parts.append(_rounds(rounds))
    if measured.skew is not None:
        parts += _waiting(measured.skew, measured.spent)
    parts += _loading(measured.spent)
    if rounds is not None and not measured.meetings.is_together:
        parts += _gained(rounds)
    parts += _bubbles(measured.steps)
    parts += _left_out(run) if is_all else []
    parts += [
        f"rank {death.rank} died after update {death.round}, and {death.left} continued"
        for death in run.deaths[:_NAMED]
    ]
    parts += [joined_in_words(*replacement) for replacement in run.replacements[:_NAMED]]
    if is_all and has_failed(run):
        parts += _goodput(run)
    return "; ".join([*parts, f"records in {folder}"])


def _keep_ends(run: RunRecords) -> bool:
    """Drop the steps before those of every rank are known, if not all rows were read; return whether it was so.

    The last step of every rank stays, whenever it was.
    """
    gaps = [next_ for rank in run.ranks for early, next_ in pairwise(rank.steps) if next_.step > early.step + 1]
    since = max((step.begin for step in gaps), default=None)
    if since is None:
        return False
    for rank in run.ranks:
        rank.steps[:-1] = [step for step in rank.steps[:-1] if step.begin >= since]
    return True


def _rates(window: Window, *, is_all: bool) -> str:
    rates = f"{number_in_words(window.steps / window.workers / window.seconds)} steps/s"
    if window.examples_per_second is not None:
        rates += f", {rate_in_words(window.examples_per_second)} examples/s"
    return rates if is_all else f"lately {rates}"


def _rounds(rounds: RoundFigures) -> str:
    batch, workers = rounds.effective_batch, range_in_words(*rounds.live)
    said = (
        f"{counted(rounds.count, 'round')}, {rounds.contributors_mean:.1f} of {workers} workers in each, "
        f"{share_in_words(rounds.fresh_share)} fresh"
    )
    said = said if batch is None else f"{said}, effective batch {number_in_words(batch)}"
    quorums = [
        str(change.settings["wait_for"])
        for change in rounds.changed
        if change.settings and "wait_for" in change.settings
    ]
    if not quorums:
        return said
    first = f"{len(quorums)} changes, the last to" if len(quorums) > _NAMED else "changed to"
    return f"{said}; the quorum: {first} {', then '.join(quorums[-1:] if len(quorums) > _NAMED else quorums)}"


def _gained(rounds: RoundFigures) -> list[str]:
    if rounds.waiting is None:
        return []
    waited = f"{share_in_words(rounds.waiting)} of the time was waiting"
    if rounds.waiting_in_step is None:
        return [waited]
    return [f"{waited}, {share_in_words(rounds.waiting_in_step)} if all had waited"]


def _goodput(run: RunRecords) -> list[str]:
    goodput = goodput_of(run)
    if goodput is None:
        return []
    lost = f" ({goodput.lost:.0f} of {counted(round(goodput.made), 'step')} were lost)" if goodput.lost >= 1 else ""
    return [f"goodput {share_in_words(goodput.share)}{lost}"]


def _left_out(run: RunRecords) -> list[str]:
    exclusions, sums = left_out_of(run)
    often = [exclusion for exclusion in exclusions if exclusion.why != NO_WEIGHT and exclusion.count >= _OFTEN * sums]
    return [
        f"rank {exclusion.rank}'s gradients were {'far off' if exclusion.why == FAR else exclusion.why} in "
        f"{share_in_words(exclusion.count / sums)} of the means"
        for exclusion in sorted(often, key=lambda exclusion: -exclusion.count)[:_NAMED]
    ]


def _bubbles(steps: Mapping[int, Sequence[Step]]) -> list[str]:
    shares = [share for rank_steps in steps.values() if (share := bubble_share(rank_steps)) is not None]
    if not shares:
        return []
    least, most = share_in_words(min(shares)), share_in_words(max(shares))
    return [f"stages waited for each other {least if least == most else f'{least} to {most}'} of the time"]


def _waiting(skew: Skew, spent: Sequence[Spent]) -> list[str]:
    slow = [rank.rank for rank in skew.slow]
    share = share_of("waiting", (time for time in spent if time.rank not in slow))
    if not skew.is_together:
        return [slow_ranks_in_words(skew)] if slow else []
    if share is None:
        return [slow_ranks_in_words(skew)]
    waited = "of the others' time was waiting" if slow else "of the time was waiting for others"
    return [slow_ranks_in_words(skew), f"{share_in_words(share)} {waited}"]


def _loading(spent: Sequence[Spent]) -> list[str]:
    """Return the share in which the rank that waits most for data does so, where it is worth a look."""
    by_rank: dict[int, list[Spent]] = {}
    for times in spent:
        by_rank.setdefault(times.rank, []).append(times)
    long = {rank: times for rank, times in by_rank.items() if len(times) >= _STEPS_OF_LOADING}
    shares = {rank: share for rank, times in long.items() if (share := share_of("data", times)) is not None}
    rank = max(shares, key=lambda rank: shares[rank], default=None)
    if rank is None or shares[rank] < _OFTEN_LOADING:
        return []
    return [f"rank {rank} waited for data {share_in_words(shares[rank])} of the time (quorate doctor --data)"]


def joined_in_words(joining: Joined, replaced: Gone | None) -> str:
    """`rank 4 joined with round 300, 22.8 s after rank 1 had died, and 4 went on`."""
    after = ""
    if replaced is not None:
        after = f", {seconds_in_words(max(0.0, joining.time - replaced.time))} after rank {replaced.rank} had died"
    return f"rank {joining.rank} joined in round {joining.round}{after}; {joining.live} workers train since"
