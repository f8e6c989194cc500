"""Tuned parts of gradients: what was tried, predicted beside measured times, and why a choice was taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from quorate.records.choice_rows import Tuned
from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element
from quorate.report.charts.scales import Scale
from quorate.report.figures.run import MeasuredRun
from quorate.report.parts import TableColumns, View, arms_table, figure, framed, nothing, paragraphs
from quorate.report.schema import Part
from quorate.report.topic import Arms, Topic, by_arm, data_of
from quorate.report.wording import numbers_alike, seconds_alike, seconds_in_words

LEAD = "Gradients are sent in parts. Choices of parts change no bit of a mean on CPUs, only when its exchange ends."
MEANINGS = (
    "Times are from the beginning of the step to the end of the exchange; the prediction is that of latency, "
    "bandwidth and ready times. The speed-up is the mean ratio of steps with the default to the next steps with the "
    "choice; its 95% interval allows for the number of finalists. Others have a median of a few pairs, and no interval."
)
DEFAULT = "the default"
_ROW, _THICK = 52.0, 9.0
_BESIDE = 140.0
"""Room for the words behind the longest bar."""


class TunedChoice(Part):
    """A choice of parts that was tried, or the default."""

    name: str
    parts: int
    predicted: float
    """Seconds to the end of the exchange."""
    measured: float | None
    pairs: int
    """Pairs of steps with the default and with it."""
    speed_up: float | None
    """Steps with the default over steps with it, in time; null for the default."""
    low: float | None
    """The interval of the speed-up; null if it was no finalist."""
    high: float | None
    taken: bool


class TuningSummary(Part):
    """The newest tuning of the first run of an arm that has any."""

    seed: int
    tunings: int
    """Tunings of the run."""
    step: int
    """The step before which it ended."""
    steps: int
    """Steps that it took."""
    latency: float
    gap: float
    """Seconds for which a sum keeps the wire from the next one, beside those of its bytes."""
    bandwidth: float | None
    """Bytes per second; null if size does not matter."""
    skew: float
    ready: float
    """Seconds until the last gradient is ready on the slowest worker."""
    refused: int
    """Proposals that were not tried, as the model predicts that they are slower."""
    choices: tuple[TunedChoice, ...]
    """The default first."""
    why: tuple[str, ...]


def tuning_of(run: MeasuredRun) -> TuningSummary | None:
    """Return the newest tuning; None if there was none."""
    rows = [row for rank in run.records.ranks for row in rank.tunings]
    if not rows:
        return None
    row = max(rows, key=lambda row: row.time)
    names = ("step", "steps", "latency", "gap", "bandwidth", "skew", "ready", "refused")
    measured = {name: getattr(row, name) for name in names}
    choices = choices_of(row)
    return TuningSummary(seed=run.seed, tunings=len(rows), choices=choices, why=tuple(row.why), **measured)


def choices_of(row: Tuned) -> tuple[TunedChoice, ...]:
    """Return the choices of a row, the default first."""
    default: dict[str, object] = {"name": DEFAULT, "pairs": 0, "taken": not row.settings}
    default |= {name: getattr(row, name) for name in ("parts", "predicted", "measured")}
    choices = []
    for values in (default, *({"name": tried.get("words"), **tried} for tried in row.tried)):
        with suppress(ValueError):  # a damaged row
            choices.append(TunedChoice.model_validate({name: values.get(name) for name in TunedChoice.model_fields}))
    return tuple(choices)


def _note(choice: TunedChoice) -> str:
    taken = "taken, " * choice.taken
    if choice.speed_up is None:
        return taken.removesuffix(", ")
    interval = "" if choice.low is None else f" ({choice.low:.3f} – {choice.high:.3f})"
    return f"{taken}{choice.speed_up:.3f} times as fast{interval}"


def _body(view: View, arms: Arms[TuningSummary]) -> Iterator[Markup]:
    for arm, summary in arms:
        yield paragraphs(*summary.why)
        yield figure(
            view,
            f"Predicted and measured ends of the exchange of {arm.name}",
            lambda width, summary=summary: pair_chart(  # type: ignore[misc]
                summary.choices,
                title="seconds from the beginning of the step",
                width=width,
                label=f"Bars: predicted and measured ends of the exchange. {' '.join(summary.why)}",
            ),
        )
    rows = [(arm, summary, choice) for arm, summary in arms for choice in summary.choices]
    yield framed(view, "Choices of parts", arms_table(rows, _COLUMNS), paragraphs(MEANINGS))


def pair_chart(choices: Sequence[TunedChoice], *, title: str, width: float, label: str) -> Markup:
    """Draw two bars for each choice, predicted and measured seconds, one below the other, from 0 on one scale."""
    greatest = max(max(choice.predicted, choice.measured or 0.0) for choice in choices) or 1.0
    x = Scale(0.0, greatest, 8.0, width - _BESIDE)
    parts = []
    for place, choice in enumerate(choices):
        top = _ROW * place + 16.0
        note = drawing.text(width, top, _note(choice), class_="small", anchor="end")
        name = drawing.shortened(choice.name, width - drawing.text_width(_note(choice)) - 16.0, 13)
        parts += [drawing.text(8.0, top, name, class_="name halo"), note]
        for number, (kind, seconds) in enumerate((("predicted", choice.predicted), ("measured", choice.measured))):
            if seconds is None:
                continue
            y, words = top + 6.0 + number * (_THICK + 4.0), f"{kind} {seconds_in_words(seconds)}"
            bar = element("path", d=f"M8 {y:.1f}H{x(seconds):.1f}v{_THICK}H8Z", class_="bins")
            after = drawing.text(x(seconds) + 5.0, y + _THICK, words, class_="mark-label halo")
            hint = element("title", f"{choice.name}: {words}")
            parts.append(drawing.group(hint, bar, after, class_=drawing.colour_of(number)))
    bottom = _ROW * len(choices) + 14.0
    parts.append(drawing.text(8.0, bottom, title, class_="axis-title"))
    return drawing.svg(width, bottom + 8.0, *parts, label=label)


_COLUMNS: TableColumns[TuningSummary, TunedChoice] = (
    ("choice", lambda summary, choice: choice.name, None),
    ("parts", lambda summary, choice: f"{choice.parts}", None),
    ("predicted", lambda summary, choice: choice.predicted, seconds_alike),
    ("measured", lambda summary, choice: choice.measured, seconds_alike),
    ("pairs", lambda summary, choice: f"{choice.pairs}" if choice.pairs else nothing("the default"), None),
    ("speed-up", lambda summary, choice: choice.speed_up, numbers_alike),
    ("from", lambda summary, choice: choice.low, numbers_alike),
    ("to", lambda summary, choice: choice.high, numbers_alike),
)
TOPIC = Topic(
    name="tuning",
    title="Parts of gradients",
    lead=LEAD,
    part=TuningSummary,
    measure=tuning_of,
    body=_body,
    markdown=lambda view, arms: by_arm(
        "Parts of gradients", arms, lambda summary: " ".join(summary.why).removesuffix(".")
    ),
    data={
        "tuning": data_of(
            "name parts predicted measured pairs speed_up low high taken", lambda summary: summary.choices
        )
    },
)
