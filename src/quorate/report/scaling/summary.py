"""The summary and the page of a training with several numbers of workers: comparisons of one strategy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from quorate.core.errors import ConfigurationError
from quorate.launch.run.folder import SCALING, SCALING_FORMAT
from quorate.report.figures.time_use import ACTIVITIES
from quorate.report.host_load import other_work_in_words
from quorate.report.parts import View
from quorate.report.reading.planned import Planned, planned_in
from quorate.report.reading.sound import has_numbers, is_number, read_json
from quorate.report.runs import RunFigures
from quorate.report.scaling.figures import Measured, Regime, ScalingSummary, rows_of
from quorate.report.scaling.page import scaling_page
from quorate.report.scaling.verdict import verdict_of, warnings_of
from quorate.report.summary import PAGE, SUMMARY, figures_of, summarize, write_files, write_report
from quorate.report.topics.noise import TOPIC as NOISE
from quorate.report.topics.noise import noise_summary
from quorate.report.topics.quality import TOPIC as QUALITY
from quorate.report.topics.quality import Curve
from quorate.report.topics.steps import TOPIC as STEPS
from quorate.report.wording import number_in_words

_PARTS = {"waiting": "waiting", "communication": "communication", "encode": "communication", "decode": "communication"}


@dataclass(frozen=True)
class Trained:
    """One number of workers: the place of its comparison, its plan, and the figures of its runs."""

    regime: Regime
    workers: int
    plan: Planned
    runs: Sequence[RunFigures]


@dataclass(frozen=True)
class Found:
    """The contents of the folder."""

    about: dict[str, Any]
    trained: Sequence[Trained]
    measured: Sequence[Measured]
    """Measured and simulated numbers of workers."""
    target: str | None
    """The target in words; None if runs left neither quality nor losses."""
    pass_examples: float
    pass_words: str


def read_scaling(folder: Path) -> Found:
    """Read `folder`. Raises `ConfigurationError` if it is no such folder, or has no run that ended well."""
    about = read_json(folder / SCALING)
    if about is None or about.get("format") != SCALING_FORMAT:
        raise ConfigurationError(
            f"{folder / SCALING} cannot be read as several numbers of workers, of format {SCALING_FORMAT}"
        )
    try:
        trained = [_trained(folder, row) for row in about["rows"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{folder / SCALING} is damaged: {error}") from None
    runs = [run for entry in trained for run in entry.runs]
    if not any(run.examples_per_second for run in runs):
        raise ConfigurationError(f"no run in {folder} ended well and counted its examples, so that nothing is compared")
    aim = aim_of(trained)
    measured = [_measured(entry, aim) for entry in trained]
    measured += _simulated(about, measured)
    examples, words = _pass(about, trained)
    return Found(about, trained, measured, None if aim is None else aim.words, examples, words)


def _trained(folder: Path, row: Mapping[str, Any]) -> Trained:
    plan = planned_in(folder / str(row["folder"]))
    (arm,) = plan.arms
    runs = [figures_of(place, seed, plan) for seed, place in arm.runs.items()]
    return Trained(cast(Regime, row["regime"]), int(row["workers"]), plan, [run for run in runs if run.is_used])


@dataclass(frozen=True)
class Aim:
    """The target to which passes are counted."""

    value: float
    is_quality: bool
    higher_is_better: bool
    words: str

    def curve(self, run: RunFigures) -> Curve | None:
        """Return the curve that is compared with it."""
        curves = QUALITY.figures(run)
        known = () if curves is None else curves.curves if self.is_quality else curves.losses
        return known[0] if known else None

    def examples(self, run: RunFigures) -> float | None:
        """Return the examples until the curve first meets it, interpolated; None if it never does."""
        curve = self.curve(run)
        if curve is None or not curve.examples:
            return None
        before: tuple[float, float] | None = None
        for examples, y in zip(curve.examples, curve.quality, strict=True):
            if y >= self.value if self.higher_is_better else y <= self.value:
                if before is None or y == before[1]:
                    return float(examples)
                share = (self.value - before[1]) / (y - before[1])
                return before[0] + share * (examples - before[0])
            before = float(examples), y
        return None


def aim_of(trained: Sequence[Trained]) -> Aim | None:
    """Return the target, if there is one; else the best that every run has reached: in quality, or else in its loss."""
    plan, runs = trained[0].plan, [run for entry in trained for run in entry.runs]
    metric = plan.metric
    curves = [run_curves for run_curves in map(QUALITY.figures, runs) if run_curves is not None]
    qualities = [curve for run_curves in curves for curve in run_curves.curves]
    if metric is not None and len(qualities) == len(runs):
        best = [(max if metric.higher_is_better else min)(curve.quality) for curve in qualities]
        common = min(best) if metric.higher_is_better else max(best)
        value = common if plan.target is None else plan.target
        return Aim(value, True, metric.higher_is_better, f"{metric.name} {number_in_words(value)}")
    losses = [curve for run_curves in curves for curve in run_curves.losses]
    if len(losses) == len(runs):
        common = max(min(curve.quality) for curve in losses)
        return Aim(common, False, False, f"a training loss of {number_in_words(common)}")
    return None


def _measured(entry: Trained, aim: Aim | None) -> Measured:
    reached = [] if aim is None else [aim.examples(run) for run in entry.runs]
    noise = noise_summary([run_noise for run in entry.runs if (run_noise := NOISE.figures(run)) is not None])
    batches = [run.batch for run in entry.runs if run.batch]
    return Measured(
        regime=entry.regime,
        workers=entry.workers,
        rates=[run.examples_per_second for run in entry.runs if run.examples_per_second],
        examples=[count for count in reached if count is not None] if None not in reached else [],
        batch=float(batches[0]) if batches else None,
        step=_step(entry.runs),
        noise=None if noise is None else noise.scale,
    )


def _step(runs: Sequence[RunFigures]) -> dict[str, float]:
    figures = [run_steps for run in runs if (run_steps := STEPS.figures(run)) is not None]
    count = sum(len(run_steps.lengths) for run_steps in figures)
    if not count:
        return {}
    step = {"compute": 0.0, "waiting": 0.0, "communication": 0.0}
    for place, name in enumerate(ACTIVITIES):
        step[_PARTS.get(name, "compute")] += sum(run_steps.totals[place] for run_steps in figures) / count
    return step


def _simulated(about: Mapping[str, Any], measured: Sequence[Measured]) -> Iterator[Measured]:
    most = max((entry for entry in measured if entry.regime == "weak"), key=lambda entry: entry.workers, default=None)
    for row in about.get("simulated") or ():
        batch = None if most is None else most.batch
        if batch is None or not has_numbers(row, "workers", "steps_per_second", "waiting_share", "communication_share"):
            continue
        rate = float(row["steps_per_second"])
        length, workers = int(row["workers"]) / rate, int(row["workers"])
        waiting, moving = (float(row[f"{name}_share"]) * length for name in ("waiting", "communication"))
        yield Measured(
            regime="weak",
            workers=workers,
            is_simulated=True,
            rates=[rate * batch],
            batch=batch,
            step={"compute": length - waiting - moving, "waiting": waiting, "communication": moving},
        )


def _pass(about: Mapping[str, Any], trained: Sequence[Trained]) -> tuple[float, str]:
    examples = next(run.examples for entry in trained for run in entry.runs if run.examples is not None)
    epochs: Any = about.get("epochs")
    if is_number(epochs) and epochs > 0 and examples:
        return examples / epochs, "a pass over the data"
    return float(examples), f"the work of the run with the fewest workers, {examples:,} examples"


def is_scaling(folder: Path) -> bool:
    """Return whether `folder` is of several numbers of workers."""
    return (folder / SCALING).is_file()


def scaling_summary(folder: Path, contents: Found) -> ScalingSummary:
    """Return the summary of the contents of `folder`."""
    about, price = contents.about, contents.about.get("price")
    rows = rows_of(contents.measured, contents.pass_examples, price)
    cores = about.get("cores") if isinstance(about.get("cores"), int) else None
    plan = contents.trained[0].plan
    other_work = other_work_in_words(run.outcome for entry in contents.trained for run in entry.runs)
    return ScalingSummary(
        title=str(about.get("title") or folder.name),
        world=plan.world,
        strategy=plan.arms[0].name,
        verdict=verdict_of(rows, contents.target, price),
        warnings=(*([other_work] if other_work else []), *warnings_of(rows, cores), *about.get("cautions", ())),
        target=contents.target,
        pass_examples=contents.pass_examples,
        pass_words=contents.pass_words,
        price=price,
        rows=rows,
        command=tuple(str(word) for word in about.get("command") or ()),
    )


def write_scaling(folder: Path) -> Path:
    """Write the reports of `folder`, and of each comparison in it; return the path of the page of all.

    Raises as `read_scaling`.
    """
    contents = read_scaling(folder)
    for entry in contents.trained:
        write_report(entry.plan.folder)
    summary = scaling_summary(folder, contents)
    page = scaling_page(summary, View(summarize(contents.trained[0].plan.folder)))
    write_files(folder, {SUMMARY: summary.model_dump_json(indent=1) + "\n", PAGE: page})
    return folder / PAGE
