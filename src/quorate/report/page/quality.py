"""Quality and training loss against time, examples and bytes: one toggle, which needs no script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quorate.report.charts.bands import Points, finite
from quorate.report.charts.lines import Axes, Line, line_chart
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Kind
from quorate.report.page.parts import View, figure, figure_in_words, missing, section
from quorate.report.schema import ArmSummary, Curve

LEAD = (
    "Lines are means over the seeds, bands reach from the lowest seed to the highest. A line that ends early belongs "
    "to an arm that was done early."
)


@dataclass(frozen=True)
class Against:
    """The quantity on the x axis."""

    name: str
    words: str
    title: str
    kind: Kind
    of: Callable[[Curve], Sequence[float]]


AGAINST = (
    Against("seconds", "time", "training time", "seconds", lambda curve: curve.seconds),
    Against("examples", "examples", "examples, all workers", "count", lambda curve: curve.examples),
    Against("bytes", "bytes", "sent by all workers", "bytes", lambda curve: curve.bytes),
)


def quality(view: View) -> Markup:
    """Return section 3 of the page."""
    shown = [against for against in AGAINST if _is_known(view, against)]
    if not shown:
        return section("quality", "Quality over time", LEAD, missing(_why_nothing(view)))
    chosen = joined(
        element(
            "input", type="radio", name="against", id=f"by-{against.name}", class_="choice", checked=place == 0
        )
        for place, against in enumerate(shown)
    )  # fmt: skip
    labels = (element("label", against.words, for_=f"by-{against.name}") for against in shown)
    toggle = element("div", element("span", "against"), *labels, class_="toggle", role="presentation")
    panels = (
        element("div", *_charts(view, against), class_=f"panel {against.name}{'' if place else ' first'}")
        for place, against in enumerate(shown)
    )
    return section("quality", "Quality over time", LEAD, chosen, toggle, *panels)


def _why_nothing(view: View) -> str:
    if view.summary.metric is None:
        return "No quality was named, and no training loss was recorded: there is no curve to draw."
    return f"No run logged {view.summary.metric.name} or a training loss: there is no curve to draw."


def _curves(arm: ArmSummary, against: Against, losses: bool) -> list[Points]:
    curves = arm.losses if losses else arm.curves
    return [
        finite(against.of(curve), curve.quality) if len(against.of(curve)) == len(curve.quality) else []
        for curve in curves
    ]


def _is_known(view: View, against: Against) -> bool:
    """Return whether there is anything to draw, and the x axis has a width."""
    arms = view.summary.arms
    points = [
        point for arm in arms for losses in (False, True) for curve in _curves(arm, against, losses) for point in curve
    ]
    return bool(points) and max(x for x, _ in points) > 0.0


def _charts(view: View, against: Against) -> list[Markup]:
    metric = view.summary.metric
    charts: list[Markup] = []
    if metric is None:
        charts.append(missing("No quality was named, so there is only the training loss."))
    else:
        better = "higher is better" if metric.higher_is_better else "lower is better"
        caption = f"{metric.name} against {view.time(against.title) if against.kind == 'seconds' else against.title}"
        charts.append(_chart(view, against, caption, f"{metric.name} ({better})", losses=False))
    if any(curve for arm in view.summary.arms for curve in _curves(arm, against, True)):
        caption = f"Training loss against {view.time(against.title) if against.kind == 'seconds' else against.title}"
        charts.append(_chart(view, against, caption, "training loss", losses=True))
    return charts


def _chart(view: View, against: Against, caption: str, y: str, *, losses: bool) -> Markup:
    lines, absent = [], []
    for arm in view.summary.arms:
        curves = _curves(arm, against, losses)
        if not any(curves):
            absent.append(arm)
            continue
        is_timed = against.kind == "seconds" and not losses and arm.time_to_target is not None
        reached = arm.time_to_target.mean if is_timed and arm.time_to_target else None
        lines.append(Line(name=arm.name, look=view.looks[arm.name], curves=curves, reached=reached))
    reason = "no training loss is known" if losses else "no evaluation was logged"
    if against.kind == "count":
        reason += ", or examples were not counted"
    note = view.left_out(absent, reason)
    if not lines:
        return missing(f"{caption}: {note or 'nothing was recorded'}")
    target = None if losses else view.summary.target
    words = "" if target is None else f"target {target:g}"
    axes = Axes(
        x=view.time(against.title) if against.kind == "seconds" else against.title,
        x_kind=against.kind,
        y=y,
        target=target,
        target_words=words,
    )
    label = _label(caption, lines, target)

    def draw(width: float) -> Markup:
        tall = 300.0 if losses else 400.0
        return line_chart(
            lines, axes, width=width, height=tall if width > 400 else tall * 0.8 + 20 * len(lines), label=label
        )

    if any(line.reached is not None for line in lines):
        note = f"Marks on the axis: mean time to the target, of runs that reached it. {note}".strip()
    return figure(view, caption, draw, note=note)


def _label(caption: str, lines: Sequence[Line], target: float | None) -> str:
    sentences = [f"Line chart: {caption}."]
    for line in lines:
        ends = [curve[-1][1] for curve in line.curves if curve]
        seeds = "one seed" if len(ends) == 1 else f"mean of {len(ends)} seeds"
        sentences.append(f"{line.name} ends at {figure_in_words(sum(ends) / len(ends))} ({seeds}).")
    if target is not None:
        sentences.append(f"The target is {target:g}.")
    return " ".join(sentences)
