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
    """Return the section on failures, with a row for each worker that died."""
    died = [(arm, fault) for arm in view.summary.arms for fault in arm.faults]
    times = alike([[fault.seconds, fault.standstill] for _, fault in died], [seconds_alike, seconds_alike])
    rows = [[arm.name, *_cells(fault, *words)] for (arm, fault), words in zip(died, times, strict=True)]
    goodputs = [(arm, arm.goodput) for arm in view.summary.arms if arm.goodput is not None]
    figures = alike([_left(goodput) for _, goodput in goodputs], _LEFT_FORMS)
    left = [[arm.name, *row] for (arm, _), row in zip(goodputs, figures, strict=True)]
    if not rows and not left:
        return Markup()
    parts = [framed(view, "What failures have left", table(_LEFT_HEADS, left), paragraphs(GOODPUT))] if left else []
    parts += [framed(view, "Workers that died", table(_HEADS, rows))] if rows else []
    return section("faults", "Faults", LEAD, *parts)


def _left(goodput: GoodputSummary) -> list[float]:
    estimates = (goodput.share, goodput.useful, goodput.lost, goodput.possible, goodput.step_seconds)
    return [estimate.mean for estimate in estimates]


_LEFT_FORMS: tuple[Alike, ...] = (shares_alike, numbers_alike, numbers_alike, numbers_alike, seconds_alike)


def _cells(fault: Fault, when: str, stood: str) -> list[str]:
    return [str(fault.seed), f"rank {fault.rank}", fault.why, when, str(fault.round), stood, str(fault.left)]


def joined_later(view: View) -> Markup:
    """Return the section with a row for each worker that joined."""
    newcomers = [(arm, newcomer) for arm in view.summary.arms for newcomer in arm.joined]
    times = alike([[newcomer.seconds, newcomer.waited] for _, newcomer in newcomers], [seconds_alike, seconds_alike])
    rows = [
        [arm.name, *_joined_cells(newcomer, *words)] for (arm, newcomer), words in zip(newcomers, times, strict=True)
    ]
    if not rows:
        return Markup()
    return section("joined", "Who joined", JOINED, framed(view, "Workers that joined", table(_JOINED_HEADS, rows)))


def _joined_cells(newcomer: Joined, when: str, waited: str) -> list[str]:
    of = nothing("nobody: it was asked for") if newcomer.replaced is None else f"rank {newcomer.replaced}"
    since = "from its quorate.join() on" if newcomer.replaced is None else "from that death on"
    took = waited if newcomer.waited is None else f"{waited}, {since}"
    return [str(newcomer.seed), f"rank {newcomer.rank}", of, when, str(newcomer.round), took, str(newcomer.live)]
