"""Faults: workers that died while the others went on; and workers that joined, in their place or beside them."""

from __future__ import annotations

from quorate.report.charts.markup import Markup
from quorate.report.page.parts import Alike, View, alike, framed, nothing, paragraphs, section, table
from quorate.report.schema import Fault, GoodputSummary, Joined
from quorate.report.wording import numbers_alike, seconds_alike, shares_alike

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
GOODPUT = (
    "Goodput is useful steps over possible ones, of single workers. Useful is a step whose work is in the model in the "
    "end. Possible is what the workers of the start could have made in the time, had nothing failed."
)
_LEFT_HEADS = ["strategy", "goodput", "useful steps", "lost", "possible", "an undisturbed step"]
_HEADS = ["strategy", "seed", "worker", "why", "noticed at", "after update", "the others stood still", "went on"]
_JOINED_HEADS = ["strategy", "seed", "worker", "in place of", "stepped from", "from round", "it took", "trained then"]


def faults(view: View) -> Markup:
    """What failures have left, and one row for each worker that died."""
    died = [(arm, one) for arm in view.summary.arms for one in arm.faults]
    times = alike([[one.seconds, one.standstill] for _, one in died], [seconds_alike, seconds_alike])
    rows = [[arm.name, *_cells(one, *some)] for (arm, one), some in zip(died, times, strict=True)]
    known = [(arm, arm.goodput) for arm in view.summary.arms if arm.goodput is not None]
    figures = alike([_left(found) for _, found in known], _LEFT_WAYS)
    left = [[arm.name, *row] for (arm, _), row in zip(known, figures, strict=True)]
    if not rows and not left:
        return Markup()
    parts = [framed(view, "What failures have left", table(_LEFT_HEADS, left), paragraphs(GOODPUT))] if left else []
    parts += [framed(view, "Workers that died", table(_HEADS, rows))] if rows else []
    return section("faults", "Faults", LEAD, *parts)


def _left(found: GoodputSummary) -> list[float]:
    some = (found.share, found.useful, found.lost, found.possible, found.step_seconds)
    return [one.mean for one in some]


_LEFT_WAYS: tuple[Alike, ...] = (shares_alike, numbers_alike, numbers_alike, numbers_alike, seconds_alike)


def _cells(one: Fault, when: str, stood: str) -> list[str]:
    return [str(one.seed), f"rank {one.rank}", one.why, when, str(one.round), stood, str(one.left)]


def joined_later(view: View) -> Markup:
    """One row for each worker that joined."""
    came = [(arm, one) for arm in view.summary.arms for one in arm.joined]
    times = alike([[one.seconds, one.waited] for _, one in came], [seconds_alike, seconds_alike])
    rows = [[arm.name, *_joined_cells(one, *some)] for (arm, one), some in zip(came, times, strict=True)]
    if not rows:
        return Markup()
    return section("joined", "Who joined", JOINED, framed(view, "Workers that joined", table(_JOINED_HEADS, rows)))


def _joined_cells(one: Joined, when: str, waited: str) -> list[str]:
    of = nothing("nobody: it was asked for") if one.replaced is None else f"rank {one.replaced}"
    since = "from its quorate.join() on" if one.replaced is None else "from that death on"
    took = waited if one.waited is None else f"{waited}, {since}"
    return [str(one.seed), f"rank {one.rank}", of, when, str(one.round), took, str(one.live)]
