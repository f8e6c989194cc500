"""Scale: each strategy with several numbers of workers: its throughput, its time to the target, and the losses.

With t seconds of an example and e examples to the target, speed-up(n) = t(n0) e(n0) / (t(n) e(n)), n0 the fewest
workers. The first ratio suffers where workers wait, bytes move, or each computes slower; the second where the batch
grows and each example teaches less.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, get_args

from quorate.core.gradient_noise import example_factor
from quorate.launch.run.folder import SIMULATED
from quorate.report.charts.lines import Axes, Line
from quorate.report.charts.markup import Markup, element
from quorate.report.figures.run import MeasuredRun
from quorate.report.figures.throughput import batch_of, examples_of
from quorate.report.figures.time_use import ACTIVITIES
from quorate.report.parts import HALF, TableColumns, View, cells_of, framed, line_figure, paragraphs, sentence, table
from quorate.report.reading.planned import metric_in
from quorate.report.reading.run import RunRecords
from quorate.report.reading.sound import has_numbers, is_number, read_json
from quorate.report.schema import Metric, Part
from quorate.report.topic import Arms, Topic, data_of
from quorate.report.topics.noise import NoiseFigures, noise_of, noise_summary
from quorate.report.topics.quality import Curve, Curves, curves_of, examples_to
from quorate.report.topics.steps import totals_of
from quorate.report.wording import (
    counted,
    listed,
    number_in_words,
    numbers_alike,
    seconds_alike,
    share_in_words,
    shares_alike,
)

LEAD = (
    "The speed-up is relative to the smallest number of workers of the same strategy: the ratio of throughputs times "
    "the ratio of examples to the target. More workers are worth having as long as each increase brings at least "
    "half of the ideal gain."
)
LOSSES = (
    "Losses are shares of the throughput (computing, which takes longer for each example; waiting for others; the "
    "wire) and of the examples (the batch). Worker-seconds are counted until the target, or for equal work if there "
    "is none."
)
FORESEEN = "Simulated: throughput as in the run with the most workers, examples to the target by the gradient noise."
Regime = Literal["weak", "strong"]
"""The constant as workers are added: `weak`, the batch of each worker; `strong`, the batch of all together."""
REGIMES: dict[Regime, str] = {"weak": "the same batch for each worker", "strong": "the same batch for all"}
Limit = Literal["computing", "waiting", "wire", "batch"]
"""The causes that keep a number of workers from being as many times as fast."""
LIMITS: dict[Limit, str] = {
    "computing": "of the throughput is lost to computing, which takes longer for each example",
    "waiting": "of the throughput is lost to waiting for others",
    "wire": "of the throughput is lost to the wire",
    "batch": "of the examples are needed only because the batch is larger",
}
NAMED, WORTH = 0.1, 0.5
"""The least loss that is said to limit the speed-up; the least gain worth more workers, as a share of the ideal."""
_CAUSES: dict[str, Limit] = {"waiting": "waiting", "communication": "wire", "encode": "wire", "decode": "wire"}
"""The causes of the activities of a step; of the others it is computing."""


class ScaleRow(Part):
    """One number of workers of a strategy; means over seeds, and ratios to the fewest workers of the strategy."""

    workers: int
    batch: float | None
    """Examples of a step, of all workers."""
    examples_per_second: float | None
    examples: float | None
    """Examples to the target: until the curve first reaches it, interpolated; null if a run never does."""
    target_seconds: float | None
    rate_speedup: float | None
    """The ratio of the throughputs."""
    example_speedup: float | None
    """The ratio of the examples to the target: below 1 where a larger batch needs more."""
    speedup: float | None
    """The product of both; of the throughputs alone, if examples to the target are not known."""
    efficiency: float | None
    """The speed-up over the ratio of the numbers of workers."""
    losses: dict[Limit, float]
    limit: Limit | None
    """The greatest of these; null if all are below a tenth."""
    worker_seconds: float | None
    """Workers times the seconds to the target; without one, for the work of the fewest workers."""
    cost: float | None


class Scale(ScaleRow):
    """One number of workers, in a comparison of several, and greater ones that were simulated from its runs."""

    target: str | None
    """The target in words; null if runs left neither quality nor losses."""
    simulated: tuple[ScaleRow, ...]


@dataclass(frozen=True)
class Target:
    """The quality or loss up to which examples are counted."""

    value: float
    metric: Metric | None
    """The measure of quality; None: the training loss."""

    @property
    def words(self) -> str:
        name = "a training loss of" if self.metric is None else self.metric.name
        return f"{name} {number_in_words(self.value)}"

    def examples(self, run: ScaledRun) -> float | None:
        """Return the examples until `run` reaches it; None if it never does."""
        curve, higher = run.curve(self.metric), self.metric is not None and self.metric.higher_is_better
        return None if curve is None else examples_to(self.value, curve, higher_is_better=higher)


@dataclass(kw_only=True)
class ScaledRun:
    """One run of a comparison of several numbers of workers."""

    strategy: str
    """The strategy with its settings."""
    workers: int
    about: Mapping[str, Any]
    batch: float | None
    """Examples of a step of one worker."""
    rate: float | None
    """Examples per second."""
    work: float | None
    """All examples."""
    step: Mapping[Limit, float]
    """Mean seconds of a step, by what they cost in comparison."""
    curves: Curves
    noise: NoiseFigures | None
    simulated: Sequence[Mapping[str, float]] = ()
    """The times that a simulation from this run predicts."""
    target: Target | None = None
    base: Sequence[ScaledRun] = ()
    """The runs of the fewest workers of the same strategy; none where there is one number of workers."""

    def curve(self, metric: Metric | None) -> Curve | None:
        """Return the curve of the quality, or, without a metric, of the loss."""
        return next(iter(self.curves.losses if metric is None else self.curves.curves), None)


def scaled_run(run: MeasuredRun) -> ScaledRun | None:
    """Return the figures of a run; None if its comparison has one number of workers."""
    about, spent, window = run.records.about, run.spent, run.window
    if not about.get("scale") or not run.records.size:
        return None
    step = dict.fromkeys(get_args(Limit), 0.0)
    for name, seconds in zip(ACTIVITIES, totals_of(spent), strict=True):
        step[_CAUSES.get(name, "computing")] += seconds / max(1, len(spent))
    return ScaledRun(
        strategy=json.dumps([about.get("strategy"), about.get("settings")]),
        workers=run.records.size,
        about=about,
        batch=batch_of(run.records),
        rate=None if window is None else window.examples_per_second,
        work=examples_of(run.records),
        step=step if spent else {},
        curves=curves_of(run),
        noise=noise_of(run),
        simulated=list(_simulated(run.records)),
    )


def _simulated(run: RunRecords) -> Iterator[Mapping[str, float]]:
    rows = (read_json(run.folder / SIMULATED) or {}).get("simulated")
    names = ("workers", "steps_per_second", "waiting_share", "communication_share")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and has_numbers(row, *names) and row["workers"] > run.size and row[names[1]] > 0:
            yield row


def align(runs: Sequence[ScaledRun]) -> None:
    """Set the target of all runs, and the runs with which each is compared."""
    target = target_of(runs)
    for run in runs:
        alike = [other for other in runs if other.strategy == run.strategy]
        fewest = min(other.workers for other in alike)
        if any(other.workers > fewest or other.simulated for other in alike):
            run.target, run.base = target, [other for other in alike if other.workers == fewest]


def target_of(runs: Sequence[ScaledRun]) -> Target | None:
    """Return the requested target; else the best that every run has reached: in quality, or else in its loss."""
    metric = metric_in(runs[0].about) if runs else None
    qualities = [curve.quality for run in runs if metric is not None and (curve := run.curve(metric))]
    if metric is not None and qualities and len(qualities) == len(runs):
        best, worst = (max, min) if metric.higher_is_better else (min, max)
        value: Any = runs[0].about.get("target")
        return Target(value if is_number(value) else worst(map(best, qualities)), metric)
    losses = [curve.quality for run in runs if (curve := run.curve(None))]
    return Target(max(map(min, losses)), None) if losses and len(losses) == len(runs) else None


@dataclass(frozen=True, kw_only=True)
class Means:
    """The means over the runs of one number of workers."""

    workers: int
    batch: float | None
    rate: float | None
    examples: float | None
    work: float | None = None
    step: Mapping[Limit, float]


def means_of(runs: Sequence[ScaledRun]) -> Means:
    """Return the means over runs of one number of workers."""
    first, target = runs[0], runs[0].target
    reached = [count for run in runs if target is not None and (count := target.examples(run)) is not None]
    rates, steps = [run.rate for run in runs if run.rate], [run.step for run in runs if run.step]
    return Means(
        workers=first.workers,
        batch=first.batch,
        rate=statistics.fmean(rates) if rates else None,
        examples=statistics.fmean(reached) if len(reached) == len(runs) else None,
        work=first.work,
        step={cause: statistics.fmean(step[cause] for step in steps) for cause in get_args(Limit) if steps},
    )


def summarize(runs: Sequence[ScaledRun]) -> Scale | None:
    """Return the part of an arm; None where there is one number of workers."""
    if not runs[0].base:
        return None
    means, base, price = means_of(runs), means_of(runs[0].base), runs[0].about.get("price")
    return Scale(
        **dict(row_of(means, base, price)),
        target=None if runs[0].target is None else runs[0].target.words,
        simulated=tuple(row_of(foreseen(row, means, runs), base, price) for run in runs for row in run.simulated),
    )


def foreseen(row: Mapping[str, float], means: Means, runs: Sequence[ScaledRun]) -> Means:
    """Return the means of simulated workers, from those of `runs`: examples to the target follow from the noise."""
    workers, length = int(row["workers"]), row["workers"] / row["steps_per_second"]
    noise = noise_summary([run.noise for run in runs if run.noise is not None])
    examples = None
    if means.examples is not None and noise is not None and noise.scale:
        factors = [example_factor(noise.scale, batch) for batch in (workers, means.workers)]
        examples = means.examples * factors[0] / factors[1]
    waiting, wire = row["waiting_share"] * length, row["communication_share"] * length
    rate = None if means.batch is None else row["steps_per_second"] * means.batch
    step: dict[Limit, float] = {"computing": length - waiting - wire, "waiting": waiting, "wire": wire}
    return Means(workers=workers, batch=means.batch, rate=rate, examples=examples, step=step)


def row_of(means: Means, base: Means, price: float | None = None) -> ScaleRow:
    """Return the figures of one number of workers beside the fewest; `price` is that of a worker and hour."""
    times = means.workers / base.workers
    rates, examples = _ratio(means.rate, base.rate), _ratio(base.examples, means.examples)
    speedup = rates if rates is None or examples is None else rates * examples
    losses = {} if means.workers == base.workers else _losses(means, base, rates, examples)
    limit = max(losses, key=lambda cause: losses[cause], default=None)
    spent = _ratio(base.work if means.examples is None else means.examples, means.rate)
    worker_seconds = None if spent is None else means.workers * spent
    return ScaleRow(
        workers=means.workers,
        batch=None if means.batch is None else means.batch * means.workers,
        examples_per_second=means.rate,
        examples=means.examples,
        target_seconds=_ratio(means.examples, means.rate),
        rate_speedup=rates,
        example_speedup=examples,
        speedup=speedup,
        efficiency=None if speedup is None else speedup / times,
        losses=losses,
        limit=limit if limit is not None and losses[limit] >= NAMED else None,
        worker_seconds=worker_seconds,
        cost=None if worker_seconds is None or not is_number(price) else worker_seconds / 3600 * (price or 0.0),
    )


def _ratio(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None


def _losses(means: Means, base: Means, rates: float | None, examples: float | None) -> dict[Limit, float]:
    """Return the shares lost against the fewest workers: of examples, and of throughput, split by the longer parts."""
    losses: dict[Limit, float] = {} if examples is None else {"batch": max(0.0, 1 - examples)}
    if rates is None or not means.step or not base.step or not means.batch or not base.batch:
        return losses
    lost = max(0.0, 1 - rates * base.workers / means.workers)
    longer = {
        cause: max(0.0, means.step.get(cause, 0.0) / means.batch - base.step.get(cause, 0.0) / base.batch)
        for cause in get_args(Limit)
        if cause != "batch"
    }
    whole = sum(longer.values())
    return losses | {cause: lost * seconds / whole if whole else 0.0 for cause, seconds in longer.items()}


@dataclass(frozen=True)
class ScaleCurve:
    """One strategy in one regime: its numbers of workers in order, the simulated ones last."""

    strategy: str
    regime: Regime
    measured: Sequence[ScaleRow]
    simulated: Sequence[ScaleRow]
    target: str | None

    @property
    def rows(self) -> list[ScaleRow]:
        """All of them."""
        return [*self.measured, *self.simulated]

    def name(self, row: ScaleRow) -> str:
        """Return the number of workers of a row, with a mark if it is simulated."""
        return f"{row.workers} (simulated)" if row in self.simulated else str(row.workers)

    def sentence(self) -> str:
        """Return how many workers are worth having, the limit of the next number, and the cost."""
        first, best = self.rows[0], worth_having(self.rows)
        words = f"{self.strategy}, {REGIMES[self.regime]}: "
        if best.speedup is None or best.rate_speedup is None:
            return f"{words}{counted(first.workers, 'worker')} left no measurement, so there is no answer."
        words += f"of {listed([self.name(row) for row in self.rows])} workers, "
        if best is first:
            words += f"more than {best.workers} are not worth having"
        else:
            gained = number_in_words(best.speedup)
            words += f"{best.workers} are worth having: {gained} times as fast as {first.workers}"
            if best.example_speedup is None:
                words += " in throughput"
            else:
                words += f" to {self.target} ({number_in_words(best.rate_speedup)} by the throughput, "
                words += f"{number_in_words(best.example_speedup)} by the examples)"
        following = next((row for row in self.rows if row.workers > best.workers), None)
        return f"{words}{'' if following is None else _following(following)}{self._cost(best)}."

    def _cost(self, best: ScaleRow) -> str:
        costs = {row.workers: row.worker_seconds for row in self.rows if row.worker_seconds}
        if best.workers not in costs:
            return ""
        spent, cheapest = costs[best.workers], min(costs, key=lambda workers: costs[workers])
        more = "the fewest"
        if cheapest != best.workers:
            more = f"{share_in_words(spent / costs[cheapest] - 1)} more than {cheapest}"
        money = "" if best.cost is None else f", which cost {number_in_words(best.cost)}"
        takes = "takes" if best.workers == 1 else "take"
        return f"; {best.workers} {takes} {number_in_words(spent)} worker-seconds, {more}{money}"

    def cells(self, missing: str | None = None) -> list[list[str]]:
        """Return the heads of its table, and the cells of each row."""
        columns = COLUMNS if any(row.cost is not None for row in self.rows) else COLUMNS[:-1]
        cells = zip(map(self.name, self.rows), *cells_of([(row,) for row in self.rows], columns, missing), strict=True)
        return [["workers", *(head for head, _, _ in columns)], *map(list, cells)]


def _following(row: ScaleRow) -> str:
    if row.speedup is None:
        return f"; {counted(row.workers, 'worker')} could not be measured"
    words = f"; {row.workers} are {number_in_words(row.speedup)} times as fast"
    return words if row.limit is None else f"{words}, where {share_in_words(row.losses[row.limit])} {LIMITS[row.limit]}"


COLUMNS: TableColumns[ScaleRow] = (
    ("batch", lambda row: row.batch, lambda values: lambda value: f"{value:,.0f}"),
    ("examples/s", lambda row: row.examples_per_second, numbers_alike),
    ("examples to target", lambda row: row.examples, lambda values: lambda value: f"{value:,.0f}"),
    ("time to target", lambda row: row.target_seconds, seconds_alike),
    ("speed-up", lambda row: row.speedup, numbers_alike),
    ("by throughput", lambda row: row.rate_speedup, numbers_alike),
    ("by examples", lambda row: row.example_speedup, numbers_alike),
    ("efficiency", lambda row: row.efficiency, shares_alike),
    ("largest loss", lambda row: f"{row.limit} {share_in_words(row.losses[row.limit])}" if row.limit else "–", None),
    ("worker-seconds", lambda row: row.worker_seconds, numbers_alike),
    ("cost", lambda row: row.cost, numbers_alike),
)
CHARTS = (
    ("Throughput", "examples per second", "examples_per_second"),
    ("Time to the target", "seconds", "target_seconds"),
    ("Speed-up", "times as fast as the fewest workers", "speedup"),
    ("Efficiency", "speed-up divided by the ratio of workers", "efficiency"),
)


def worth_having(rows: Sequence[ScaleRow]) -> ScaleRow:
    """Return the row with the most workers up to which each increase has brought at least half of the ideal gain.

    The gain is s2 / s1 - 1, and n2 / n1 - 1 where the speed-up s grows as the workers do.
    """
    best = rows[0]
    for row in rows[1:]:
        times = None if not best.speedup or row.speedup is None else row.speedup / best.speedup
        if times is None or times - 1 < WORTH * (row.workers / best.workers - 1):
            break
        best = row
    return best


def curves_in(arms: Arms[Scale]) -> list[ScaleCurve]:
    """Return the curves of all strategies that have several numbers of workers."""
    by_strategy: dict[str, list[Scale]] = {}
    for arm, scale in sorted(arms, key=lambda pair: pair[1].workers):
        by_strategy.setdefault(arm.name.partition("-workers=")[0], []).append(scale)
    curves = []
    for strategy, (first, *more) in by_strategy.items():
        for regime in REGIMES:
            rows = [first, *(row for row in more if _regime(row, first) == regime)]
            simulated = [row for scale in rows for row in scale.simulated if regime == "weak"]
            if len(rows) + len(simulated) > 1:
                curves.append(ScaleCurve(strategy, regime, rows, simulated, first.target))
    return curves


def _regime(row: ScaleRow, first: ScaleRow) -> Regime:
    if row.batch is None or first.batch is None:
        return "weak"
    return "strong" if row.batch / row.workers < first.batch / first.workers else "weak"


def _body(view: View, arms: Arms[Scale]) -> Iterator[Markup]:
    curves = curves_in(arms)
    for curve in curves:
        heads, *rows = curve.cells()
        note = FORESEEN if curve.simulated else ""
        caption = f"{curve.strategy}, {curve.regime} scaling: {REGIMES[curve.regime]}"
        target = f"The target is {curve.target}." if curve.target else "No quality was recorded, so there is no target."
        finding = element("p", sentence(curve.sentence()), class_="finding")
        yield framed(view, caption, finding, table(heads, rows), paragraphs(note, target))
    if curves:
        yield paragraphs(LOSSES)
        yield element("div", *_charts(view, curves), class_="figures")


def _charts(view: View, curves: Sequence[ScaleCurve]) -> Iterator[Markup]:
    counts = sorted({row.workers for curve in curves for row in curve.rows})
    ideal = Line(name="ideal", look=7, curves=[[(n, n / counts[0]) for n in counts]], is_of_runs=False)
    for caption, unit, field in CHARTS:
        lines = [line for place, curve in enumerate(curves) for line in _lines(curve, place, len(curves), field)]
        ends = [(line.name, *(number_in_words(line.curves[0][end][1]) for end in (0, -1))) for line in lines]
        axes = Axes(x="workers", x_kind="count", y=view.time(unit) if "second" in unit else unit)
        label = f"Line chart: {caption}. " + " ".join(f"{name}: from {low} to {high}." for name, low, high in ends)
        if lines:
            drawn = [*lines, ideal] if field == "speedup" else lines
            yield line_figure(view, caption, drawn, axes, label, wide=HALF)


def _lines(curve: ScaleCurve, place: int, curves: int, field: str) -> Iterator[Line]:
    """Yield a line of measured rows; and from its last point on, with another look, one of simulated rows."""
    value_of = attrgetter(field)
    measured, simulated = (
        [(float(row.workers), value) for row in rows if (value := value_of(row)) is not None]
        for rows in (curve.measured, curve.simulated)
    )
    name = f"{curve.strategy}, {curve.regime}"
    if measured:
        yield Line(name=name, look=place, curves=[measured], is_of_runs=False)
    if simulated:
        points = [*measured[-1:], *simulated]
        yield Line(name=f"{name}, simulated", look=place + curves, curves=[points], is_of_runs=False)


def _markdown(view: View, arms: Arms[Scale]) -> list[str]:
    parts = []
    for curve in curves_in(arms):
        heads, *rows = curve.cells("–")
        lines = [heads, ["---"] * len(heads), *rows]
        parts += [curve.sentence(), "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return ["## Number of workers", *parts] if parts else []


TOPIC = Topic(
    name="scale",
    title="Number of workers",
    lead=LEAD,
    is_open=True,
    part=Scale,
    measure=scaled_run,
    align=align,
    summarize=summarize,
    body=_body,
    markdown=_markdown,
    data={
        "scale": data_of(
            "workers batch examples_per_second examples target_seconds speedup efficiency",
            lambda scale: [scale, *scale.simulated],
        )
    },
)
