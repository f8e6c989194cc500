"""The rounds of one run in figures: their number, contributors, staleness, and waiting."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from quorate.records.rows import Step
from quorate.report.figures.lateness import waiting_in_step
from quorate.report.figures.throughput import Window
from quorate.report.figures.time_use import Spent, share_of
from quorate.report.reading.rounds import Merged, RoundRecord


@dataclass(frozen=True, kw_only=True)
class RoundFigures:
    """Figures of the rounds formed in the window of the throughput, unless said to be of the whole run."""

    size: int
    """Workers at the start."""
    live: tuple[int, int]
    """The fewest and the most live workers in a round."""
    count: int
    """Updates in the whole run."""
    per_second: float | None
    contributors: Counter[int]
    """Rounds by the number of contributors."""
    staleness: Counter[int]
    """Gradients by the number of rounds between their parameters and the newest."""
    ranks: Counter[int]
    """Gradients by rank."""
    batch: float | None
    """Examples of a gradient; None where they were not counted."""
    waiting: float | None
    """The share of the time of steps that was waiting for others."""
    waiting_in_step: float | None
    """The estimate of that share, had everybody waited for everybody."""
    changed: Sequence[RoundRecord]
    """The rounds in which settings changed, in order."""

    @property
    def rounds(self) -> int:
        return self.contributors.total()

    @property
    def gradients(self) -> int:
        """Gradients in all rounds together."""
        return self.staleness.total()

    @property
    def contributors_mean(self) -> float:
        """The mean number of workers in a round."""
        return sum(number * count for number, count in self.contributors.items()) / self.rounds

    @property
    def fresh_share(self) -> float:
        """The share of gradients that were not late."""
        return self.staleness[0] / self.gradients

    @property
    def effective_batch(self) -> float | None:
        """The mean number of examples in a round."""
        return None if self.batch is None else self.batch * self.gradients / self.rounds


def figures_of_rounds(
    merged: Sequence[Merged],
    size: int,
    window: Window | None,
    steps: Mapping[int, Sequence[Step]],
    spent: Sequence[Spent],
    newcomers: Collection[int] = (),
) -> RoundFigures | None:
    """Return the figures of rounds; None if no round took in anything.

    Args:
        size: The number of workers.
        steps: The steps after the warm-up, by rank.
        spent: The uses of the time of the steps that measure.
        newcomers: Ranks that joined later, and have no step of equal number.
    """
    inside = [update for update in merged if window is not None and window.holds(update.formed)]
    contributors: Counter[int] = Counter()
    staleness: Counter[int] = Counter()
    ranks: Counter[int] = Counter()
    for update in inside or merged:
        contributors[len(update.round.taken)] += 1
        for rank, gradients in update.round.taken.items():
            for age, count in gradients:
                staleness[age] += count
                ranks[rank] += count
    if not staleness.total():
        return None
    examples = [step.examples for rank_steps in steps.values() for step in rank_steps]
    counts = [count for count in examples if count is not None]
    lives = [update.round.live for update in inside or merged]
    return RoundFigures(
        size=size,
        live=(min(lives), max(lives)),
        count=merged[-1].round.update or len(merged),
        per_second=len(inside) / window.seconds if window is not None and inside else None,
        contributors=contributors,
        staleness=staleness,
        ranks=ranks,
        batch=statistics.fmean(counts) if counts and len(counts) == len(examples) else None,
        waiting=share_of("waiting", spent),
        waiting_in_step=waiting_in_step(
            {rank: rank_steps for rank, rank_steps in steps.items() if rank not in newcomers}
        ),
        changed=[update.round for update in merged if update.round.settings is not None],
    )
