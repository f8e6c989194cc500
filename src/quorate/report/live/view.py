"""A run under way in words: the one model of a terminal, a browser and a notebook."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from quorate.records.live_figures import LiveFigures
from quorate.report.figures.lateness import slow_ranks_in_words
from quorate.report.live.run import RECENT, LiveRun
from quorate.report.wording import (
    bytes_in_words,
    counted,
    number_in_words,
    rate_in_words,
    seconds_in_words,
    share_in_words,
    time_left_in_words,
)

_NAMED = 3
"""The most values that the script logs in one line."""


@dataclass(frozen=True, kw_only=True)
class LiveView:
    """The state of a run; None and empty lists stand for what is not known."""

    folder: Path
    workers: int
    is_virtual: bool
    strategy: str | None
    epoch: str | None
    """`epoch 3 (45%, 12 s left)`."""
    speed: list[str]
    """`step 1,240`, `8.40 steps/s`, `270 examples/s`, `loss 0.312`, `top1 0.910`, `about 2 min 5 s left`."""
    share: float | None
    """The share of the run or of the epoch that is done."""
    rounds: list[str]
    """`412 rounds, 2.3 of 4 workers in each`, and figures of learners."""
    sent: str | None
    """`40.0 kB per step and rank`."""
    slow: str | None
    """The sentence about slow ranks; None while no two ranks can be compared."""
    has_slow: bool
    events: list[str]
    """Deaths and joins, in order."""
    end: str | None
    """`ended well after 14.2 s`, `failed with status 1 after 14.2 s: rank 1 was killed`; None while it goes on."""
    has_failed: bool

    @property
    def progress(self) -> list[str]:
        """Its strategy, step, epoch and speed."""
        step, *speed = self.speed
        return [word for word in (self.strategy, step, self.epoch) if word is not None] + speed

    @property
    def title(self) -> str:
        """Its folder, with a mark if its time is virtual."""
        return f"{self.folder} (virtual time)" if self.is_virtual else str(self.folder)

    @property
    def lines(self) -> list[str]:
        """All of it, a line each."""
        lines = [f"{self.folder}: {counted(self.workers, 'worker')}{' (virtual time)' if self.is_virtual else ''}"]
        lines += [", ".join(self.progress), ", ".join(self.rounds), self.sent or "", self.slow or "", *self.events]
        return [line for line in [*lines, self.end or ""] if line]


def view_of(run: LiveRun) -> LiveView:
    """Return the state of a run, as far as its records have been read."""
    skew, leader = run.skew(), run.leader
    recent = max((len(rank.recent) for rank in run.workers), default=RECENT)
    return LiveView(
        folder=run.folder,
        workers=run.size,
        is_virtual=run.is_virtual,
        strategy=None if leader is None else run.strategy,
        epoch=_epoch(run),
        speed=_speed(run),
        share=None if run.has_ended else run.share,
        rounds=_rounds(run),
        sent=_sent(run),
        slow=None if skew is None else f"{slow_ranks_in_words(skew)} (last {recent} steps)",
        has_slow=skew is not None and bool(skew.slow),
        events=_events(run),
        end=_end(run),
        has_failed=(run.outcome or {}).get("status", 0) != 0,
    )


def _epoch(run: LiveRun) -> str | None:
    if run.epoch is None or run.leader is None:
        return None
    parts = [share_in_words(run.epoch.share(run.leader.steps))]
    if run.left is not None and run.limit is None:
        parts.append(f"{time_left_in_words(run.left)} left")
    return f"epoch {run.epoch.number + 1} ({', '.join(parts)})"


def _speed(run: LiveRun) -> list[str]:
    leader = run.leader
    if leader is None:
        return [f"starting: {run.joined} of {counted(run.size, 'worker')} have joined" if run.size else "starting"]
    words = [f"step {leader.steps:,}"]
    if leader.rate is not None:
        words.append(f"{number_in_words(leader.rate)} steps/s")
    if run.examples_rate is not None:
        words.append(f"{rate_in_words(run.examples_rate)} examples/s")
    if leader.loss is not None:
        words.append(f"loss {number_in_words(leader.loss)}")
    words += [f"{name} {number_in_words(value)}" for name, value in run.numbers.items() if name != "loss"][:_NAMED]
    if run.left is not None and run.limit is not None:
        words.append(f"about {time_left_in_words(run.left)} left")
    return words


def _rounds(run: LiveRun) -> list[str]:
    words = figures_in_words(run.figures, run.size)
    if run.rounds and run.contributors is not None:
        in_each = f"{run.contributors:.1f} of {counted(len(run.workers), 'worker')} in each"
        words.insert(0, f"{counted(run.rounds, 'round')}, {in_each}")
    return words


def figures_in_words(figures: LiveFigures, workers: int) -> list[str]:
    """`goodput 91%`, `2 of 4 merged, 0.5 rounds old, after 120 ms`, `rho 0.31`, `gain 2.4`: if they are known."""
    words, newest = [], figures.newest
    if figures.has_failed and figures.goodput is not None:
        words.append(f"goodput {share_in_words(figures.goodput)}")
    if "merged" in newest:
        waited = f", after {seconds_in_words(newest['window'])}" if newest.get("window") else ""
        words.append(f"{newest['merged']:.0f} of {workers} merged, {newest['merge age']:.1f} rounds old{waited}")
    return words + [f"{name} {newest[name]:.2f}" for name in ("rho", "gain") if name in newest]


def _sent(run: LiveRun) -> str | None:
    recent = [step.bytes_out for rank in run.workers for step in rank.recent]
    mean = statistics.fmean(recent) if recent else 0.0
    return f"{bytes_in_words(mean)} per step and rank" if mean else None


def _events(run: LiveRun) -> list[str]:
    died = [
        (death.time, f"rank {death.rank} {death.reason} after update {death.round}; {death.left} continued")
        for death in run.deaths.values()
    ]
    joined = [
        (joining.time, f"rank {joining.rank} joined at update {joining.round}; {joining.live} train since")
        for joining in run.joinings.values()
    ]
    return [words for _, words in sorted(died + joined)]


def _end(run: LiveRun) -> str | None:
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
