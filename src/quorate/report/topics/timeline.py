"""Some typical steps of a run, side by side: the activities of ranks over time."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from quorate.report.charts import activities, drawing
from quorate.report.charts.activities import words_of
from quorate.report.charts.markup import Markup, element, escaped, joined, number
from quorate.report.charts.scales import Scale, scale_of
from quorate.report.figures.lateness import meetings_of
from quorate.report.figures.run import MeasuredRun
from quorate.report.figures.time_use import ACTIVITIES, Spent, spent_in
from quorate.report.parts import View, figure, folded, missing
from quorate.report.reading.rounds import Merged
from quorate.report.schema import ArmSummary, Part
from quorate.report.topic import Arms, Row, Topic
from quorate.report.topics.arrival import TOPIC as ARRIVAL
from quorate.report.topics.verdict import ranked_arms
from quorate.report.wording import counted, listed, seconds_in_words

LEAD = "Where a rank waits, look for the rank that still computes."
_ALIKE = 4.0
"""Arms share one scale, unless one shows this many times the seconds of another."""
EXPLAINED = (
    "Consecutive steps of typical length. Spans show what each rank was doing; a gap in all lanes is an evaluation. "
    "The gradient of a rank that the round did not wait for goes into a later round."
)
STEPS = 20
ROUNDS = 40
"""About the most rounds in the steps shown, so that each can be seen."""
LEAST_STEPS = 3
LANES = 16
"""The most ranks shown."""
SHORTEST = 1e-6
"""Spans below this, the clock's last digit, are left out."""
_ORDER = ("data", "pace", "delay", "compute", "encode", "waiting", "communication", "decode", "update", "other")
"""The order within a step."""
_PLACES = [(name, ACTIVITIES.index(name)) for name in _ORDER]
_DIGITS = 6
Span = tuple[str, float, float]
"""Activity, begin and end, in seconds."""
SPANS = 20_000
"""The most spans in a chart; the later ones of a lane are left out."""
_THINNEST = 0.2
"""Units of width below which a span would not be seen."""
_ROW = 27.0
_FRESH, _LATE, _ROUND = "fresh gradient", "late gradient", "round"


class Lane(Part):
    """One rank in the timeline of typical steps: spans of (activity as in `StepTimes.shares`, begin, end).

    Seconds are since the beginning of the lanes.
    """

    rank: int
    spans: tuple[tuple[str, float, float], ...]


class Mark(Part):
    """One round in the timeline. Seconds are since the beginning of the lanes."""

    number: int
    time: float
    """When the first replica had applied it."""
    given: tuple[tuple[int, float, int], ...]
    """Its gradients: the rank, the time of arrival (below 0 for before the beginning), and the staleness in rounds."""


class Timeline(Part):
    """The timeline of an arm."""

    timeline: tuple[Lane, ...] = ()
    """Some 20 typical steps of the run of `arrival`; 16 ranks at most, with the slow one."""
    marks: tuple[Mark, ...] = ()
    """The rounds in the timeline."""


def _of_run(run: MeasuredRun) -> tuple[bool, Timeline]:
    """Return whether ranks met in the run, and its timeline."""
    spent = by_rank(spent_in(meetings_of(run.warm), run.last_arrivals))
    lanes, marks = timeline_of(spent, run.skew.slow[0].rank if run.skew and run.skew.slow else None, run.merged)
    return run.skew is not None, Timeline(timeline=lanes, marks=marks)


def by_rank(spent: Iterable[Spent]) -> Mapping[int, list[Spent]]:
    """Return the steps of each rank, in order of time."""
    steps: dict[int, list[Spent]] = {}
    for times in spent:
        steps.setdefault(times.rank, []).append(times)
    return {rank: sorted(rank_steps, key=lambda times: times.step.begin) for rank, rank_steps in sorted(steps.items())}


def timeline_of(
    steps: Mapping[int, Sequence[Spent]], slow_rank: int | None, merged: Sequence[Merged] = ()
) -> tuple[tuple[Lane, ...], tuple[Mark, ...]]:
    """Return about `STEPS` typical steps of the first ranks and the slow one, and the rounds in them; none without
    steps.

    Of all windows of consecutive steps of the lowest rank, it is the one that takes the median time. Within a step the
    order of activities is known, their times are not: parts are laid end to end.
    """
    shown = sorted(steps)[:LANES]
    if slow_rank is not None and slow_rank in steps and slow_rank not in shown:
        shown = [*shown[: LANES - 1], slow_rank]
    if not shown:
        return (), ()
    lowest = steps[shown[0]]
    begin, end = _typical(lowest, _width(lowest, merged))
    lanes = [Lane(rank=rank, spans=_spans(steps[rank], begin, end)) for rank in shown]
    present = tuple(lane for lane in lanes if lane.spans)  # others had died by then, or had not joined yet
    return present or tuple(lanes), tuple(_mark(update, begin) for update in merged if begin <= update.formed <= end)


def _width(steps: Sequence[Spent], merged: Sequence[Merged]) -> int:
    since, until = steps[0].step.begin, steps[-1].step.end
    rounds = sum(since <= update.formed <= until for update in merged)
    fitting = STEPS if rounds * STEPS <= ROUNDS * len(steps) else ROUNDS * len(steps) // rounds
    return min(len(steps), max(LEAST_STEPS, fitting))


def _mark(update: Merged, begin: float) -> Mark:
    gradient = sorted(
        (round(gradient.step.arrive - begin, _DIGITS), gradient.rank, gradient.staleness)
        for gradient in update.gradients
    )
    return Mark(
        number=update.round.number,
        time=round(update.formed - begin, _DIGITS),
        given=tuple((rank, time, staleness) for time, rank, staleness in gradient),
    )


def _typical(steps: Sequence[Spent], width: int) -> tuple[float, float]:
    windows = sorted(
        (last.step.end - first.step.begin, first.step.begin, last.step.end)
        for first, last in zip(steps, steps[width - 1 :], strict=False)
    )
    _, begin, end = windows[(len(windows) - 1) // 2]
    return begin, end


def _spans(steps: Sequence[Spent], begin: float, end: float) -> tuple[tuple[str, float, float], ...]:
    spans = []
    for times in steps:
        if times.step.end <= begin or times.step.begin >= end:
            continue
        now = times.step.begin
        for name, place in _PLACES:
            since, now = now, now + times.by[place]
            low, high = max(since, begin), min(now, end)
            if high - low >= SHORTEST:
                spans.append((name, round(low - begin, _DIGITS), round(high - begin, _DIGITS)))
    return tuple(spans)


def _body(view: View, arms: Arms[Timeline]) -> Iterator[Markup]:
    shown = [(arm, part) for arm, part in arms if any(lane.spans for lane in part.timeline)]
    if not shown:
        yield missing("No arm has a run with steps after the warm-up, so there is no timeline.")
        return
    lengths = [max(end for lane in part.timeline for _, _, end in lane.spans) for _, part in shown]
    are_alike = max(lengths) <= _ALIKE * min(lengths)
    charts = {
        arm.name: _arm(view, arm, part, max(lengths) if are_alike else length)
        for (arm, part), length in zip(shown, lengths, strict=True)
    }
    best = [arm.name for arm in ranked_arms(view.summary.arms) if arm.name in charts][:1]
    first = [arm.name for arm, _ in shown if arm.is_baseline or arm.name in best]
    scale = "" if view.is_single else "All arms are on one scale." if are_alike else "Each arm has a scale of its own."
    absent = view.left_out(charts, "no steps were recorded")
    example = [", where RUN is the folder of a run, such as ", element("code", _a_run(shown[0][0])), " here"]
    note = element(
        "p", f"{EXPLAINED} {scale} {absent} For a zoomable timeline of a full run, use ",
        element("code", "quorate trace RUN"), *([] if view.is_single else example), ".", class_="note",
    )  # fmt: skip
    yield joined(charts[name] for name in first)
    others = [chart for name, chart in charts.items() if name not in first]
    yield folded(
        f"{counted(len(others), 'more arm')}, and how to read this" if others else "How to read this", *others, note
    )


def _arm(view: View, arm: ArmSummary, part: Timeline, seconds: float) -> Markup:
    arrival = ARRIVAL.of(arm)
    slow_rank = arrival.slow_rank if arrival else None
    shown = part.timeline
    lanes = [
        (f"rank {lane.rank} (slow)" if lane.rank == slow_rank else f"rank {lane.rank}", lane.spans) for lane in shown
    ]
    note = ""
    if len(shown) < view.workers(arm):
        note = f"{len(shown)} of {view.workers(arm)} ranks: {listed([str(lane.rank) for lane in shown])}."
    rounds = _rounds(part.marks, [lane.rank for lane in shown])
    described = f"{_in_words(shown)} {_rounds_in_words(part.marks)}".strip()
    label = f"Timeline of typical steps of {arm.name}, {seconds_in_words(seconds)} long. {described}"
    title = view.time("time")
    return figure(
        view, arm.name,
        lambda width: lane_chart(lanes, seconds=seconds, title=title, width=width, label=label, rounds=rounds),
        note=note, slim=False,
    )  # fmt: skip


def _rounds(marks: Sequence[Mark], ranks: Sequence[int]) -> list[RoundLine]:
    places = {rank: place for place, rank in enumerate(ranks)}
    lines = []
    for mark in marks:
        gradients = [(places[rank], time, staleness > 0) for rank, time, staleness in mark.given if rank in places]
        of = sorted({rank for rank, _, _ in mark.given})
        words = listed([str(rank) for rank in of]) if len(of) <= LANES else f"{len(of)} of them"
        name = f"round {mark.number:,}, with gradients of {'rank' if len(of) == 1 else 'ranks'} {words}"
        lines.append(RoundLine(name=name if of else f"round {mark.number:,}", time=mark.time, gradients=gradients))
    return lines


def _rounds_in_words(marks: Sequence[Mark]) -> str:
    if not marks:
        return ""
    fresh = sum(staleness == 0 for mark in marks for _, _, staleness in mark.given)
    late = sum(len(mark.given) for mark in marks) - fresh
    return f"Lines mark {counted(len(marks), 'round')}, dots {fresh:,} fresh and {late:,} late gradients."


def _in_words(lanes: Sequence[Lane]) -> str:
    descriptions = []
    for lane in lanes:
        spent: dict[str, float] = {}
        for name, begin, end in lane.spans:
            spent[name] = spent.get(name, 0.0) + end - begin
        most = sorted(spent, key=lambda name: -spent[name])[:2]
        descriptions.append(
            f"Rank {lane.rank}: {listed([f'{words_of(name)} {seconds_in_words(spent[name])}' for name in most])}."
        )
    return " ".join(descriptions)


def _a_run(arm: ArmSummary) -> str:
    arrival = ARRIVAL.of(arm)
    seed = arrival.seed if arrival else None
    folders = [run.folder for run in arm.runs if run.seed == seed] or [run.folder for run in arm.runs]
    return folders[0] if folders else "RUN"


@dataclass(frozen=True)
class RoundLine:
    """A round across the lanes: its time, and its gradients as (lane, time of arrival, is it late)."""

    name: str
    time: float
    gradients: Sequence[tuple[int, float, bool]]


def lane_chart(
    lanes: Sequence[tuple[str, Sequence[Span]]],
    *,
    seconds: float,
    title: str,
    width: float,
    label: str,
    rounds: Sequence[RoundLine] = (),
) -> Markup:
    """Draw all lanes on one scale, `seconds` long. Spans of one activity in one lane are one path of wide strokes.

    Rounds are lines across the lanes. A dot marks the arrival of a gradient, full if it was fresh; from it a fine line
    leads to the round that took it in. A round did not wait for a rank that is still computing at its line.
    """
    names = {name for _, spans in lanes for name, _, _ in spans}
    ordered = [name for name in activities.SHOWN if name in names] + sorted(names - set(activities.SHOWN))
    legend, top = activities.key(ordered, width, 2.0)
    if rounds:
        legend = joined([legend, _key(top - 2.0)])
        top += 26.0
    left = min(110.0, max(drawing.text_width(name) for name, _ in lanes) + 12.0)
    foot = top + _ROW * len(lanes)
    x = scale_of([0.0, seconds], left, width - 10.0, kind="seconds", from_zero=True)
    parts: list[str] = [legend, drawing.axis_below(x, foot, top, title, most=8)]
    most = SPANS // len(lanes)
    for place, (name, spans) in enumerate(lanes):
        y = top + _ROW * (place + 0.5)
        parts.append(drawing.text(left - 8, y + 4, name, class_="row-name", anchor="end"))
        strokes: dict[str, _Strokes] = {}
        for activity, begin, end in spans[:most]:
            wide = x(end) - x(begin)
            if wide >= _THINNEST:
                strokes.setdefault(activity, _Strokes()).add(x(begin), y, max(0.3, wide))
        drawn = (
            element("path", element("title", f"{name}: {activities.words_of(activity)}"), d=spent.d,
                    class_=f"lane {activities.class_of(activity)}")
            for activity, spent in strokes.items()
        )  # fmt: skip
        parts.append(joined(drawn))
    parts.append(_round_lines(rounds, x, top, foot, f"t{zlib.crc32(escaped(label).encode()):x}"))
    return drawing.svg(width, foot + 42.0, *parts, label=label)


def _round_lines(rounds: Sequence[RoundLine], x: Scale, top: float, foot: float, name: str) -> Markup:
    """Draw rounds within the scale: a gradient from before it has no dot, only its line to the round.

    Lines and dots are drawn twice, for their rims, from paths whose ids begin with `name`.
    """
    lines, links = [], _Strokes()
    dots = {False: _Strokes(), True: _Strokes()}
    for line in rounds:
        at = x(line.time)
        hint = element("title", line.name)
        lines.append(element("path", hint, d=f"M{number(at)} {number(top - 6.0)}V{number(foot)}", class_="round"))
        for lane, time, is_late in line.gradients:
            y = top + _ROW * (lane + 0.5)
            begin = x(max(0.0, time))
            links.add(begin, y, at - begin)
            if time >= 0.0:
                dots[is_late].add(begin, y, 0.0)
    drawn = [links.drawn(f"{name}-ways", "way-halo", "way")]
    for is_late, kind in ((False, "fresh"), (True, "late")):
        drawn.append(dots[is_late].drawn(f"{name}-{kind}", f"rim {kind}", f"gradient {kind}"))
    return joined([*lines, *drawn])


@dataclass
class _Strokes:
    """Level strokes as one path, in tenths, each relative to the end of the one before, which is shorter.

    Strokes without length have round ends, so they are dots.
    """

    d: str = ""
    _x: int = 0
    _y: int = 0

    def add(self, x: float, y: float, length: float) -> None:
        """Add a stroke from (x, y) to the right."""
        begin, row, wide = round(x * 10.0), round(y * 10.0), round(length * 10.0)
        self.d += f"m{number((begin - self._x) / 10.0)} {number((row - self._y) / 10.0)}h{number(wide / 10.0)}"
        self._x, self._y = begin + wide, row

    def drawn(self, name: str, *classes: str) -> Markup:
        """Return the path, drawn once for each of the classes; nothing without strokes."""
        if not self.d:
            return Markup()
        path = element("defs", element("path", d=self.d, id=name))
        return joined([path, *(element("use", href=f"#{name}", class_=kind) for kind in classes)])


def _key(y: float) -> Markup:
    parts: list[str] = []
    x = 1.0
    for words, sign in ((_ROUND, "|"), (_FRESH, "full"), (_LATE, "hollow")):
        if sign == "|":
            parts.append(element("path", d=f"M{number(x + 9)} {number(y - 1)}v14", class_="round"))
        else:
            parts.append(element("path", d=f"M{number(x + 3)} {number(y + 6)}h16", class_="way"))
            kind = "late" if sign == "hollow" else "fresh"
            dot = f"M{number(x + 5)} {number(y + 6)}h0"
            parts += [element("path", d=dot, class_=f"{part} {kind}") for part in ("rim", "gradient")]
        parts.append(drawing.text(x + 25, y + 10, words, class_="key"))
        x += 28.0 + drawing.text_width(words) + 12.0
    return joined(parts)


def _mark_rows(part: Timeline) -> Iterator[Row]:
    """Yield a row for every gradient; a round without known gradients has one row."""
    for mark in part.marks:
        for gradient in mark.given or ((None, None, None),):
            yield (mark.number, mark.time, *gradient)


TOPIC = Topic(
    name="timeline",
    title="Timeline of typical steps",
    lead=LEAD,
    part=Timeline,
    is_open=True,
    is_flat=True,
    measure=_of_run,
    summarize=lambda runs: next((timeline for is_met, timeline in runs if is_met), runs[0][1]),
    body=_body,
    data={
        "timeline": (
            "rank activity begin end",
            lambda part: ((lane.rank, *span) for lane in part.timeline for span in lane.spans),
        ),
        "marks": ("round time rank arrive staleness", _mark_rows),
    },
)
