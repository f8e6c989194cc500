"""Faults: workers that died while the others went on; and workers that joined, in their place or beside them."""

from __future__ import annotations

from quorate.report.charts.markup import Markup, element
from quorate.report.page.parts import NOT_MEASURED, View, framed, section, table
from quorate.report.schema import Fault, Joined
from quorate.report.wording import seconds_in_words

LEAD = (
    "Workers that died, and were outlived: the others went on without them, with replicas as equal as ever. What one "
    "had computed and not yet given is lost. How long the others stood still is the longest time between two steps of "
    "one of them around the moment when they had noticed; it holds a whole step as well."
)
JOINED = (
    "Workers that were not there at the start: quorate run --restart starts one in place of one that died, and quorate "
    "join one more. Each began with a copy of a replica that trained. What they did counts in the throughput from when "
    "they came. Their step 1 is not that of the others: where not everybody waits for everybody they are left out of "
    "what holds steps of equal number side by side."
)
_HEADS = ["strategy", "seed", "worker", "why", "noticed at", "after update", "the others stood still", "went on"]

_JOINED_HEADS = ["strategy", "seed", "worker", "in place of", "stepped from", "from round", "it took", "trained then"]


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


def has_joined(view: View) -> bool:
    """Whether that section means something."""
    return any(arm.joined for arm in view.summary.arms)


def joined_later(view: View) -> Markup:
    """One row for each."""
    rows = [[arm.name, *_joined_cells(one)] for arm in view.summary.arms for one in arm.joined]
    return section("joined", "Who joined", JOINED, framed(view, "Workers that joined", table(_JOINED_HEADS, rows)))


def _joined_cells(one: Joined) -> list[Markup | str]:
    nobody = element("span", "nobody: it was asked for", class_="none")
    since = "from its quorate.join() on" if one.replaced is None else "from that death on"
    took = element("span", NOT_MEASURED, class_="none") if one.waited is None else seconds_in_words(one.waited)
    return [
        str(one.seed),
        f"rank {one.rank}",
        nobody if one.replaced is None else f"rank {one.replaced}",
        seconds_in_words(one.seconds),
        str(one.round),
        took if one.waited is None else f"{took}, {since}",
        str(one.live),
    ]
