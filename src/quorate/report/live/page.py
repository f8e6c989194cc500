"""The live page: tiles of the present figures, curves of the past ones, slow ranks, deaths and joins.

The server draws it; the page's own script only fetches the changing part, once a second, until the run has ended.
It is drawn with the charts of the report, and like that works offline.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from quorate.report.charts.arrivals import COLUMNS, ROWS, ArrivalRows, arrival_chart, coarser
from quorate.report.charts.lines import Axes, Line, line_chart
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Kind, unit_for
from quorate.report.figures.lateness import Skew
from quorate.report.live.run import LiveRun
from quorate.report.live.series import Series
from quorate.report.live.words import (
    bytes_sent_in_words,
    end_in_words,
    events_in_words,
    lateness_in_words,
    progress_in_words,
    rounds_in_words,
)
from quorate.report.page import asset, heading
from quorate.report.parts import HALF, SLIM, WIDE, chip, sentence
from quorate.report.topics.arrival import arrival_of, rows_of
from quorate.report.wording import (
    bytes_in_words,
    counted,
    number_in_words,
    rate_in_words,
    time_left_in_words,
)

_TALL, _SLIM_TALL = 230.0, 240.0
_LOOK = 9
"""A solid line in the first colour that is not ink: a chart holds one curve, so looks need not differ."""
_EVENTS = 40
"""The most deaths and joins that are listed; the newest."""


def live_policy() -> str:
    """Return the policy: the page may load itself and its changing part, nothing else."""
    digest = base64.b64encode(hashlib.sha256(asset("live.js").encode()).digest()).decode()
    return (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        f"connect-src 'self'; script-src 'sha256-{digest}'"
    )


def live_document(run: LiveRun, *, is_still: bool = False) -> str:
    """Return the whole page; one that `is_still` requests nothing more."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{run.folder.name} · Quorate"),
        element("style", *(Markup(asset(name)) for name in ("page.css", "charts.css", "live.css"))),
    )
    lost = "The server of this page does not answer: what is shown is the last it said."
    body = element(
        "body",
        element(
            "div",
            element("p", lost, id="connection", role="status", hidden=True),
            element("div", Markup(live_state(run)), id="state"),
            class_="page",
        ),
        *([] if is_still else [element("script", Markup(asset("live.js")))]),
        class_="live virtual" if run.is_virtual else "live measured",
    )
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def live_state(run: LiveRun) -> str:
    """Return the changing part of the page."""
    skew = run.skew()
    late = lateness_in_words(run, skew)
    is_slow = skew is not None and bool(skew.slow)
    parts = [heading("live", str(run.folder.name), _chips(run)), _tiles(run)]
    if late is not None:
        parts.append(element("p", sentence(late), class_="late-line slow" if is_slow else "late-line"))
    parts.append(element("div", *_curves(run), class_="curves"))
    if skew is not None:
        parts.append(_lateness(run, skew))
    parts.append(_events(run))
    return joined(part for part in parts if part)


def _chips(run: LiveRun) -> list[Markup]:
    ended = end_in_words(run)
    is_bad = (run.outcome or {}).get("status", 0) != 0
    shown = chip("running", "good") if ended is None else chip(ended, "bad" if is_bad else "good")
    chips = [shown, chip(counted(run.size, "worker"))]
    if run.is_virtual:
        chips.insert(1, chip("virtual time: simulated, not measured", "virtual-chip"))
    for name in ("strategy", "script"):
        if isinstance(run.about.get(name), str):
            text = str(run.about[name])
            chips.append(chip(Path(text).name if name == "strategy" and text.endswith(".py") else text))
    if ended is not None:
        chips.append(element("span", data_ended=True))
    return chips


def _tiles(run: LiveRun) -> Markup:
    leader = run.leader
    if leader is None:
        return element("p", sentence(", ".join(progress_in_words(run))), class_="late-line")
    values: list[tuple[str, str]] = [(f"{leader.steps:,}", "steps")]
    if leader.rate is not None:
        values.append((number_in_words(leader.rate), "steps per second"))
    if run.examples_rate is not None:
        values.append((rate_in_words(run.examples_rate), "examples per second, all workers"))
    if leader.loss is not None:
        values.append((number_in_words(leader.loss), f"loss of rank {leader.rank}"))
    values += [(number_in_words(value), name) for name, value in run.numbers.items() if name != "loss"][:4]
    if run.contributors is not None:
        values.append((f"{run.contributors:.1f} of {len(run.workers)}", f"workers in a round, {run.rounds:,} rounds"))
    recent = bytes_sent_in_words(run)
    if recent is not None:
        values.append((recent.partition(" per ")[0], "sent per step and rank"))
    sent = sum(rank.bytes_out for rank in run.ranks.values())
    if sent:
        values.append((bytes_in_words(sent), "sent by all, so far"))
    if run.left is not None and not run.has_ended:
        values.append((time_left_in_words(run.left), "left"))
    others = rounds_in_words(run)[1 if run.rounds else 0 :]
    tiles = [element("div", element("b", value), element("span", name), class_="tile") for value, name in values]
    more = [element("p", sentence(", ".join(others)), class_="note")] if others else []
    return joined([element("div", *tiles, class_="tiles"), *more])


def _curves(run: LiveRun) -> list[Markup]:
    leader = run.leader
    rank = "" if leader is None else f" of rank {leader.rank}"
    named: list[tuple[str, Series, Kind]] = [
        (f"loss{rank}", run.losses, "plain"),
        ("steps per second", run.rates, "plain"),
        ("workers in a round", run.taken_in, "plain"),
        (f"bytes sent per second{rank}", run.sent, "bytes"),
    ]
    named += [(name, series, "plain") for name, series in run.curves.items()]
    return [_curve(run, name, series, kind) for name, series, kind in named if len(series.points) > 1]


def _curve(run: LiveRun, name: str, series: Series, kind: Kind) -> Markup:
    unit = unit_for(kind, max(y for _, y in series.points))
    points = [(x, y / unit.size) for x, y in series.points]
    time = "virtual time" if run.is_virtual else "time"
    now = f"{number_in_words(points[-1][1])} {unit.name}".rstrip()
    label = f"{name} against {time}; now {now}"

    def draw(width: float) -> Markup:
        axes = Axes(x=time, x_kind="seconds", y=unit.name)
        line = Line(name=now, look=_LOOK, curves=[points], is_of_runs=False)
        return line_chart([line], axes, width=width, height=_TALL if width > SLIM else _SLIM_TALL, label=label)

    return _figure(name, draw, HALF)


def _lateness(run: LiveRun, skew: Skew) -> Markup:
    arrival = arrival_of(skew, 0)
    heat = coarser(arrival.heat, ROWS, COLUMNS)
    longest = max(rank.lateness_p95 for rank in arrival.ranks)
    cells = sorted(cell for row in heat for cell in row if cell is not None)
    lateness = ArrivalRows(
        rows=rows_of(arrival),
        heat=heat,
        steps=arrival.steps[: max((len(row) for row in heat), default=0)],
        longest=longest,
        darkest=cells[int(0.98 * (len(cells) - 1))] if cells else longest,
        is_together=arrival.is_together,
    )
    measure = "lateness" if arrival.is_together else "longer at work than the fastest"
    title = f"{measure}; bar: mean, line: to p95"
    label = f"{measure} of each rank in the last steps. {sentence(arrival.sentence)}"
    return _figure(
        "Lateness by rank, in the last steps",
        lambda w: arrival_chart(lateness, title=title, width=w, label=label),
        WIDE,
    )


def _figure(caption: str, draw: Callable[[float], Markup], wide: float) -> Markup:
    return element(
        "figure",
        element("figcaption", element("span", caption)),
        element("div", draw(wide), class_="wide"),
        element("div", draw(SLIM), class_="slim"),
    )


def _events(run: LiveRun) -> Markup:
    events: Sequence[str] = events_in_words(run)[-_EVENTS:]
    if not events:
        return Markup()
    listed = element("ul", *(element("li", sentence(words)) for words in reversed(events)), class_="facts")
    return element("figure", element("figcaption", element("span", "Deaths and joins, the newest first")), listed)
