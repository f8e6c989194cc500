"""A run under way in words: the lines of a terminal, and of a page."""

from __future__ import annotations

import statistics

from quorate.records.live_figures import LiveFigures
from quorate.report.figures.lateness import Lateness, Skew
from quorate.report.live.run import LiveRun
from quorate.report.wording import (
    bytes_in_words,
    counted,
    number_in_words,
    ranks_named,
    rate_in_words,
    seconds_in_words,
    share_in_words,
    time_left_in_words,
)

_NAMED = 3
"""The most values that the script logs in one line."""


def figures_in_words(figures: LiveFigures, workers: int) -> list[str]:
    """`goodput 91%`, `2 of 4 merged, 0.5 rounds old, after 120 ms`, `rho 0.31, gain 2.4`: if they are known."""
    words, newest = [], figures.newest
    if figures.has_failed and figures.goodput is not None:
        words.append(f"goodput {share_in_words(figures.goodput)}")
    if "merged" in newest:
        waited = f", after {seconds_in_words(newest['window'])}" if newest.get("window") else ""
        words.append(f"{newest['merged']:.0f} of {workers} merged, {newest['merge age']:.1f} rounds old{waited}")
    return words + [f"{name} {newest[name]:.2f}" for name in ("rho", "gain") if name in newest]


def progress_in_words(run: LiveRun) -> list[str]:
    """`eager-solo`, `step 1,240`, `epoch 3 (45%)`, `8.40 steps/s`, `270 examples/s`, `loss 0.312`, `top1 0.910`,
    `about 2 min 5 s left`."""
    leader = run.leader
    if leader is None:
        return [f"starting: {run.joined} of {counted(run.size, 'worker')} have joined" if run.size else "starting"]
    words = [] if (strategy := run.strategy) is None else [strategy]
    words.append(f"step {leader.steps:,}")
    if run.epoch is not None:
        words.append(f"epoch {run.epoch.number + 1} ({share_in_words(run.epoch.share(leader.steps))})")
    if leader.rate is not None:
        words.append(f"{number_in_words(leader.rate)} steps/s")
    if run.examples_rate is not None:
        words.append(f"{rate_in_words(run.examples_rate)} examples/s")
    if leader.loss is not None:
        words.append(f"loss {number_in_words(leader.loss)}")
    words += [f"{name} {number_in_words(value)}" for name, value in run.numbers.items() if name != "loss"][:_NAMED]
    if run.left is not None and not run.has_ended:
        words.append(f"about {time_left_in_words(run.left)} left")
    return words


def rounds_in_words(run: LiveRun) -> list[str]:
    """`412 rounds, 2.3 of 4 workers in each`, and figures of learners; nothing if rounds are not recorded."""
    words = figures_in_words(run.figures, run.size)
    if run.rounds and run.contributors is not None:
        in_each = f"{run.contributors:.1f} of {counted(len(run.workers), 'worker')} in each"
        words.insert(0, f"{counted(run.rounds, 'round')}, {in_each}")
    return words


def bytes_sent_in_words(run: LiveRun) -> str | None:
    """`40.0 kB per step and rank`; None if nothing was sent."""
    recent = [step.bytes_out for rank in run.workers for step in rank.recent]
    mean = statistics.fmean(recent) if recent else 0.0
    return f"{bytes_in_words(mean)} per step and rank" if mean else None


def lateness_in_words(run: LiveRun, skew: Skew | None) -> str | None:
    """Describe `run.skew()`: `rank 2 is 180 ms late, median of the last 50 steps`; None if nobody can be late."""
    if skew is None:
        return None
    over = f"median of the last {max(len(rank.recent) for rank in run.workers)} steps"
    if not skew.slow:
        if not skew.is_together:
            return "no rank is significantly slower than the others"
        return f"no rank is significantly late: the last one comes {seconds_in_words(skew.last_median)} after the first"
    who = _who(skew.slow, skew)
    if skew.is_together:
        late = statistics.median(rank.median for rank in skew.slow)
        return f"{who} {seconds_in_words(late)} late, {over}"
    slow_median = statistics.median(rank.busy_median for rank in skew.slow)
    others_median = statistics.median(rank.busy_median for rank in skew.others)
    ranks = ranks_named([rank.rank for rank in skew.slow], len(skew.ranks))
    needs = "needs" if len(skew.slow) == 1 else "need"
    times = f"{slow_median / others_median:.1f}x the others"
    return f"{ranks} {needs} {seconds_in_words(slow_median)} per step, {times}, {over}"


def _who(slow: tuple[Lateness, ...], skew: Skew) -> str:
    return f"{ranks_named([rank.rank for rank in slow], len(skew.ranks))} {'is' if len(slow) == 1 else 'are'}"


def events_in_words(run: LiveRun) -> list[str]:
    """Describe deaths and joins, in order."""
    died = [
        (death.time, f"rank {death.rank} {death.reason} after update {death.round}; {death.left} went on")
        for death in run.deaths.values()
    ]
    joined = [
        (joining.time, f"rank {joining.rank} joined at update {joining.round}; {joining.live} train since")
        for joining in run.joinings.values()
    ]
    return [words for _, words in sorted(died + joined)]


def end_in_words(run: LiveRun) -> str | None:
    """`ended well after 14.2 s`, `failed with status 1 after 14.2 s: rank 1 was killed`; None while it goes on."""
    if not run.has_ended:
        return None
    outcome = run.outcome or {}
    status, seconds, why = outcome.get("status"), outcome.get("seconds"), outcome.get("why")
    after = f" after {seconds_in_words(seconds)}" if isinstance(seconds, int | float) else ""
    if status is None:
        return "every worker has ended"
    if status == 0:
        return f"ended well{after}"
    return f"{'interrupted' if status == 130 else f'failed with status {status}'}{after}{f': {why}' if why else ''}"


def run_in_words(run: LiveRun) -> list[str]:
    """Everything above, a line each: the text form of the live page."""
    virtual = " (virtual time)" if run.is_virtual else ""
    lines = [f"{run.folder}: {counted(run.size, 'worker')}{virtual}", ", ".join(progress_in_words(run))]
    rounds, sent, late = ", ".join(rounds_in_words(run)), bytes_sent_in_words(run), lateness_in_words(run, run.skew())
    lines += [line for line in (rounds, sent, late) if line]
    lines += events_in_words(run)
    ended = end_in_words(run)
    return lines if ended is None else [*lines, ended]
