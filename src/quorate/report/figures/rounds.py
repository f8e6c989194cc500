"""The rounds of one run in figures: how many, of how many workers, how stale, and what waiting they cost."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from quorate.records.rows import Step
from quorate.report.figures.in_step import waiting_in_step
from quorate.report.figures.throughput import Window
from quorate.report.figures.time_use import Spent, waiting_share
from quorate.report.reading.rounds import Merged, RoundRecord


@dataclass(frozen=True, kw_only=True)
class RoundFigures:
    """Whatever is not told of the whole run is of the rounds that were formed in the window of the throughput."""

    size: int
    """Workers at the start."""
    live: tuple[int, int]
    """Workers that were counted in a round, the fewest and the most."""
    count: int
    """Updates in the whole run."""
    per_second: float | None
    contributors: Counter[int]
    """Rounds by how many workers were in them."""
    staleness: Counter[int]
    """Gradients by how many rounds older than the newest parameters those were that they were computed on."""
    ranks: Counter[int]
    """Gradients by rank."""
    batch: float | None
    """Examples of a gradient; None where they were not counted."""
    waiting: float | None
    """The share of the time of steps that was waiting for others."""
    waiting_in_step: float | None
    """What that share would have been, had everybody waited for everybody."""
    changed: Sequence[RoundRecord]
    """The rounds with which settings changed, in order."""

    @property
    def rounds(self) -> int:
        return self.contributors.total()

    @property
    def gradients(self) -> int:
        """In all rounds together."""
        return self.staleness.total()

    @property
    def contributors_mean(self) -> float:
        """Workers in a round, in the mean over rounds."""
        return sum(number * count for number, count in self.contributors.items()) / self.rounds

    @property
    def fresh_share(self) -> float:
        """The share of gradients that were not late."""
        return self.staleness[0] / self.gradients

    @property
    def effective_batch(self) -> float | None:
        """Examples in a round, in the mean."""
        return None if self.batch is None else self.batch * self.gradients / self.rounds


def figures_of_rounds(
    merged: Sequence[Merged],
    size: int,
    window: Window | None,
    steps: Mapping[int, Sequence[Step]],
    spent: Sequence[Spent],
    newcomers: Collection[int] = (),
) -> RoundFigures | None:
    """`size` is the number of workers, `steps` are those after the warm-up, `spent` is where the time of those went
    that measure; `newcomers` joined later, and have no step of equal number. None where no round took in anything.
    """
    inside = [one for one in merged if window is not None and window.holds(one.formed)]
    contributors: Counter[int] = Counter()
    staleness: Counter[int] = Counter()
    ranks: Counter[int] = Counter()
    for one in inside or merged:
        contributors[len(one.round.taken)] += 1
        for rank, given in one.round.taken.items():
            for age, count in given:
                staleness[age] += count
                ranks[rank] += count
    if not staleness.total():
        return None
    examples = [step.examples for own in steps.values() for step in own]
    known = [count for count in examples if count is not None]
    return RoundFigures(
        size=size,
        live=(min(one.round.live for one in inside or merged), max(one.round.live for one in inside or merged)),
        count=merged[-1].round.update or len(merged),
        per_second=len(inside) / window.seconds if window is not None and inside else None,
        contributors=contributors,
        staleness=staleness,
        ranks=ranks,
        batch=statistics.fmean(known) if known and len(known) == len(examples) else None,
        waiting=waiting_share(spent),
        waiting_in_step=waiting_in_step({rank: own for rank, own in steps.items() if rank not in newcomers}),
        changed=[one.round for one in merged if one.round.settings is not None],
    )
