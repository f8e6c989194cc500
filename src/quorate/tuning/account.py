"""The account of a tuning: three sentences, and the figures of the candidates for the records; pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from quorate.tuning.choices import Choice, Profile
from quorate.tuning.decision import median_speed_up, speed_up
from quorate.tuning.tuner import Outcome, Tuner

Measured = Mapping[Choice, Sequence[float]]
"""By choice, measured seconds from the beginning of the step to the end of the exchange."""


def sentences(profile: Profile, tuner: Tuner | None, outcome: Outcome, default: Choice) -> list[str]:
    """Return why a choice was taken, in three sentences; without a tuner it was computed."""
    costs, ready = profile.costs, 1e3 * max(profile.ready)
    rate = "any size takes as long" if math.isinf(costs.bandwidth) else f"{costs.bandwidth / 1e6:,.0f} MB/s"
    network = (
        f"A sum among the workers takes {1e3 * costs.latency:.2f} ms and {rate}, the next one begins "
        f"{1e3 * costs.occupied:.2f} ms later, and the last gradient is ready after {ready:.1f} ms."
    )
    if tuner is None:
        ends = [f"{1e3 * profile.predicted(choice):.1f} ms" for choice in (default, outcome.choice)]
        return [
            network,
            f"The exchange is predicted to end after {ends[1]}, and after {ends[0]} with the default.",
            f"So it has {outcome.choice.in_words(default)}.",
        ]
    trials = f"{len(tuner.tried)} choices were tried in pairs of steps with the default"
    refusals = f"the model refuses {tuner.refused} more as slower" if tuner.refused else "the model refuses no other"
    tried = f"{trials}, and {refusals}."
    if outcome.interval is None:
        return [network, tried, "No choice has its whole 95% interval above the default, so the default stays."]
    low, high = outcome.interval.low or 0.0, outcome.interval.high or 0.0
    return [
        network,
        tried,
        f"Steps are {outcome.interval.mean:.3f} times as fast with {outcome.choice.in_words(default)} (95% interval "
        f"{low:.3f} to {high:.3f}), so this is used.",
    ]


def candidates(tuner: Tuner, outcome: Outcome, measured: Measured) -> list[dict[str, Any]]:
    """Return the figures of each candidate, for `records.choice_rows.Tuned`.

    They are its `words`, its `parts`, the `predicted` and `measured` end of its exchange, and the number of `pairs`.
    The `speed_up` of a step has an interval (`low`, `high`), which is null for those that were no finalists. One may be
    `taken`.
    """
    rows = []
    for number, tried in enumerate(tuner.tried):
        is_finalist = bool(tried.last)
        interval = speed_up(tried.last, len(tuner.finalists or ())) if is_finalist else None
        ratio = interval.mean if interval is not None else median_speed_up(tried.first)
        rows.append(
            {
                "words": tried.choice.in_words(tuner.default),
                "parts": len(tuner.profile.ends_of(tried.choice)),
                "predicted": tried.predicted,
                "measured": middle(measured, tried.choice),
                "pairs": len(tried.last or tried.first),
                "speed_up": ratio or None,
                "low": None if interval is None else interval.low,
                "high": None if interval is None else interval.high,
                "taken": outcome.number == number,
            }
        )
    return rows


def middle(measured: Measured, choice: Choice) -> float | None:
    """Return the median of what was measured of a choice."""
    seconds = measured.get(choice)
    return statistics.median(seconds) if seconds else None
