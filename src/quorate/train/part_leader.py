"""Rank 0's part in arranging the parts of gradients: it plans from measured times, and decides between trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quorate.core.fields import Fields
from quorate.core.vectors import Layout
from quorate.means.reduction import ReductionSettings
from quorate.records.choice_rows import Tuned
from quorate.tuning.account import candidates, middle, sentences
from quorate.tuning.best_parts import LinkCosts
from quorate.tuning.choices import Choice, Profile, profile_of
from quorate.tuning.decision import Pair, left_band
from quorate.tuning.proposals import proposer_of
from quorate.tuning.tuner import Outcome, Trial, Tuner

BAND = 2.0
"""The factor by which latency, bandwidth or skew change before parts are tuned again."""
LEAST_SKEW = 0.1
"""The share of the backward pass below which a skew is none."""
FREE = LinkCosts(0.0, math.inf)
"""The costs of sums where they are not measured."""


@dataclass(frozen=True)
class Decision(Fields):
    """The parts of the next sums."""

    choice: dict[str, Any]
    order: list[int]
    """The numbers of the tensors in the order in which they are sent."""
    ends: list[int]
    pairs: int = 0
    """Pairs of sums, with the default and with this choice in turn; 0: the choice holds for all further sums."""
    again: bool = False
    """Whether ready times are measured again, as some worker has none."""


class PartLeader:
    """Decides for all workers. `seconds` and `ends` are filled by the worker that it belongs to."""

    def __init__(self, default: Choice, settings: ReductionSettings, steps: int) -> None:
        """`steps` is the most that a tuning may take after its times were measured."""
        self._default, self._settings, self._steps = default, settings, steps
        self.seconds: dict[int, float] = {}
        """By number of a sum, the seconds of its step, if it was a step like others."""
        self.ends: dict[Choice, list[float]] = {}
        """By choice, seconds from the beginning of the step to the end of the exchange."""
        self._profile: Profile | None = None
        self._tuner: Tuner | None = None
        self._running: Trial | None = None
        self._choice = default

    def planned(self, ready: Sequence[Sequence[float] | None], costs: LinkCosts, layout: Layout) -> Decision:
        """Return what follows from the ready times of each worker, and the costs of sums."""
        known = [times for times in ready if times is not None]
        if len(known) < len(ready):
            return Decision(choice={}, order=[], ends=[], again=True)
        sizes = [s.numel * layout.parts[s.part].dtype.itemsize for s in layout.segments]
        before, now = self._profile, profile_of(known, sizes, costs)
        if before is not None and not _is_out_of_band(before, now):
            return self._decision(self._choice, before)
        self._profile, self._choice, self.ends = now, self._default, {}
        if not self._settings.autotune:
            how: dict[str, Any] = {"part_order": self._settings.part_order, "part_layout": self._settings.part_layout}
            self._choice = replace(self._default, **how)
            return self._decision(self._choice, now)
        self._tuner, self._running = Tuner(self._default, now, proposer_of(self._default, now), self._steps), None
        return self.decided(0, 0)

    def decided(self, first: int, end: int) -> Decision:
        """Return what follows the trial that had the sums from `first` up to `end`."""
        tuner, profile = self._tuner, self._profile
        assert tuner is not None and profile is not None
        if self._running is not None:
            tuner.measured(self._running, [self._pair(number) for number in range(first, end, 2)])
        self.seconds.clear()
        self._running = tuner.trial()
        if self._running is not None:
            return self._decision(self._running.choice, profile, self._running.pairs)
        self._choice = tuner.outcome().choice
        return self._decision(self._choice, profile)

    def _pair(self, first: int) -> Pair | None:
        default, own = self.seconds.get(first, 0.0), self.seconds.get(first + 1, 0.0)
        return (default, own) if default > 0 and own > 0 else None

    @staticmethod
    def _decision(choice: Choice, profile: Profile, pairs: int = 0) -> Decision:
        order, ends = list(profile.order_of(choice)), list(profile.ends_of(choice))
        return Decision(choice=choice.header(), order=order, ends=ends, pairs=pairs)

    def row(self, about: Mapping[str, Any]) -> Tuned | None:
        """Return the row of a choice that was made since the last call, with what it is `about`; None without one."""
        profile, tuner = self._profile, self._tuner
        if profile is None or (self._settings.autotune and tuner is None):
            return None
        self._tuner = None
        outcome = Outcome(self._choice, None, None) if tuner is None else tuner.outcome()
        rate = profile.costs.bandwidth
        return Tuned(
            **about,
            latency=profile.costs.latency,
            gap=profile.costs.occupied,
            bandwidth=None if math.isinf(rate) else rate,
            skew=profile.skew,
            ready=max(profile.ready),
            predicted=profile.predicted(self._default),
            measured=middle(self.ends, self._default),
            parts=len(profile.ends_of(self._default)),
            refused=0 if tuner is None else tuner.refused,
            tried=[] if tuner is None else candidates(tuner, outcome, self.ends),
            settings=self._choice.other_than(self._default),
            why=sentences(profile, tuner, outcome, self._default),
        )


def _is_out_of_band(before: Profile, now: Profile) -> bool:
    least = LEAST_SKEW * max(before.ready)
    return (
        left_band(before.costs.latency, now.costs.latency, BAND)
        or left_band(1 / before.costs.bandwidth, 1 / now.costs.bandwidth, BAND)
        or left_band(max(before.skew, least), max(now.skew, least), BAND)
    )
