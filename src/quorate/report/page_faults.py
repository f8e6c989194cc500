"""Faults: workers that died while the others went on."""

from __future__ import annotations

from quorate.report.charts.markup import Markup, element
from quorate.report.page_parts import NOT_MEASURED, View, framed, section, table
from quorate.report.schema import Fault
from quorate.report.wording import seconds_in_words

LEAD = (
    "Workers that died, and were outlived: the others went on without them, with equal replicas. What such a worker "
    "had computed and not yet given is lost. How long the others stood still is the longest time between two steps of "
    "one of them around the moment when they had noticed; it holds a whole step as well."
)
_HEADS = ["strategy", "seed", "worker", "why", "noticed at", "after update", "the others stood still", "went on"]


def has_faults(view: View) -> bool:
    """Whether this section means something."""
    return any(arm.faults for arm in view.summary.arms)


def faults(view: View) -> Markup:
    """One row for each."""
    rows = [[arm.name, *_cells(one)] for arm in view.summary.arms for one in arm.faults]
    return section("faults", "Faults", LEAD, framed(view, "Workers that died", table(_HEADS, rows)))


def _cells(one: Fault) -> list[Markup | str]:
    still = one.standstill
    stood = element("span", NOT_MEASURED, class_="none") if still is None else seconds_in_words(still)
    when = [seconds_in_words(one.seconds), str(one.round)]
    return [str(one.seed), f"rank {one.rank}", one.why, *when, stood, str(one.left)]
