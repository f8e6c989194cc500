"""The speed-up of more workers taken apart, the losses, and the sentence about it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quorate.records.rows import Noise
from quorate.report.parts import View
from quorate.report.schema import Metric
from quorate.report.summary import markdown, summarize, tables
from quorate.report.topics.noise import NoiseFigures
from quorate.report.topics.quality import Curve, Curves
from quorate.report.topics.scale import (
    TOPIC,
    Means,
    Scale,
    ScaleCurve,
    ScaledRun,
    ScaleRow,
    align,
    curves_in,
    row_of,
    target_of,
    worth_having,
)
from quorate.report.topics.scale import summarize as scale_of
from tests.support.made_records import make_run, make_scaled_comparison
from tests.support.parsed_pages import parsed

TOP1 = Metric(name="top1", higher_is_better=True)


def made(workers: int, rate: float, examples: float | None = 6000.0, step: tuple[float, ...] = (0.1, 0, 0)) -> Means:
    parts: Any = dict(zip(("computing", "waiting", "wire"), step, strict=True))
    return Means(workers=workers, batch=10.0, rate=rate, examples=examples, work=1000.0, step=parts)


MEASURED = (
    made(1, 100.0),
    made(2, 190.0, step=(0.100, 0.004, 0.001)),
    made(4, 300.0, 8000.0, step=(0.100, 0.030, 0.0033)),
)


def rows_of(measured: tuple[Means, ...] = MEASURED, price: float | None = None) -> list[ScaleRow]:
    return [row_of(means, measured[0], price) for means in measured]


def test_the_speed_up_is_the_product_of_two_ratios() -> None:
    single, two, four = rows_of(price=36.0)
    assert [row.workers for row in (single, two, four)] == [1, 2, 4]
    assert (single.examples_per_second, single.examples, single.target_seconds) == (100.0, 6000.0, 60.0)
    assert (single.speedup, single.efficiency, single.losses, single.limit) == (1.0, 1.0, {}, None)
    assert two.speedup == two.rate_speedup == pytest.approx(1.9) and two.example_speedup == 1.0
    assert four.rate_speedup == pytest.approx(3.0) and four.example_speedup == 0.75
    assert four.speedup == pytest.approx(2.25) == 60.0 / (four.target_seconds or 0)
    assert four.efficiency == pytest.approx(2.25 / 4)
    assert four.batch == 40.0 and four.worker_seconds == pytest.approx(4 * 80 / 3)
    assert four.cost == pytest.approx(4 * 80 / 3 / 100)


def test_losses_are_divided_by_what_takes_longer() -> None:
    _, two, four = rows_of()
    assert two.losses == {
        "batch": 0.0,
        "computing": 0.0,
        "waiting": pytest.approx(0.05 * 0.8),
        "wire": pytest.approx(0.05 * 0.2),
    }
    assert two.limit is None and two.cost is None
    assert four.losses["waiting"] == pytest.approx(0.25 * 0.030 / 0.0333)
    assert (four.losses["batch"], four.limit) == (0.25, "batch")


def test_without_a_target_the_speed_up_is_of_the_throughput() -> None:
    _, two = rows_of((made(1, 100.0, None), made(2, 190.0, None)))
    assert (two.examples, two.example_speedup, two.target_seconds) == (None, None, None)
    assert two.speedup == two.rate_speedup == pytest.approx(1.9)
    assert two.worker_seconds == pytest.approx(2 * 1000 / 190)


@pytest.mark.parametrize(
    ("rates", "best"), [([100, 190, 300, 390], 4), ([100, 190, 360, 400], 4), ([100, 140, 300], 1), ([100, 200], 2)]
)
def test_the_most_workers_that_bring_half_of_what_they_could(rates: list[float], best: int) -> None:
    measured = tuple(made(2**place, rate) for place, rate in enumerate(rates))
    assert worth_having(rows_of(measured)).workers == best


def test_the_sentence_of_a_curve() -> None:
    rows = rows_of(price=36.0)
    assert ScaleCurve("all-reduce", "weak", rows, (), "top1 0.93").sentence() == (
        "all-reduce, the same batch for each worker: of 1, 2 and 4 workers, 2 are worth having: 1.90 times as fast as "
        "1 to top1 0.93 (1.90 by the throughput, 1.00 by the examples it takes); 4 come to 2.25 times, where 25% of "
        "the examples are those that the larger batch takes more; 2 take 63.2 worker-seconds, 5.3% more than 1, which "
        "cost 0.632."
    )
    slow = rows_of((made(1, 100.0), made(2, 110.0, step=(0.1, 0.08, 0))))
    assert ScaleCurve("sgp", "strong", slow[:1], slow[1:], None).sentence() == (
        "sgp, the same batch for all: of 1 and 2 (simulated) workers, more than 1 are not worth having; 2 come "
        "to 1.10 times, where 45% of the throughput is lost to waiting for others; 1 takes 60.0 worker-seconds, the "
        "least of all."
    )
    failed = row_of(Means(workers=3, batch=None, rate=None, examples=None, step={}), MEASURED[0])
    assert "; 3 workers could not be measured; " in ScaleCurve("x", "weak", [rows[0], failed], (), None).sentence()
    assert "3 workers left nothing to measure" in ScaleCurve("x", "weak", [failed, rows[1]], (), None).sentence()


def scaled_run(
    workers: int,
    quality: list[float] | None,
    losses: list[float] = [3.0],  # noqa: B006 - it is read only
    *,
    strategy: str = "x",
    batch: float = 10.0,
    simulated: tuple[dict[str, float], ...] = (),
    **about: Any,
) -> ScaledRun:
    """A run with a curve, evaluated after 100, 200, ... examples."""

    def curve(values: list[float]) -> Curve:
        examples = tuple(100 * (place + 1) for place in range(len(values)))
        return Curve(
            seed=0, seconds=tuple(map(float, examples)), examples=examples, bytes=examples, quality=tuple(values)
        )

    curves = Curves(curves=(curve(quality),) if quality else (), losses=(curve(losses),))
    metric = None if quality is None else {"name": "top1", "higher_is_better": True}
    return ScaledRun(
        strategy=strategy, workers=workers, about={"metric": metric, **about}, batch=batch, rate=100.0 * workers,
        work=1000.0, step={}, curves=curves, noise=None, simulated=simulated,
    )  # fmt: skip


def test_examples_are_to_the_best_that_every_run_has_reached() -> None:
    both = [scaled_run(1, [0.2, 0.6, 0.5]), scaled_run(2, [0.1, 0.3, 0.9])]
    target = target_of(both)
    assert target is not None and (target.words, target.value) == ("top1 0.600", 0.6)
    assert [target.examples(run) for run in both] == [200.0, pytest.approx(250.0)]
    lower = {"name": "error", "higher_is_better": False}
    target = target_of([scaled_run(1, [0.2, 0.6], metric=lower), scaled_run(2, [0.3, 0.1], metric=lower)])
    assert target is not None and target.value == 0.2


def test_a_target_may_be_missed_and_losses_stand_in_for_quality() -> None:
    both = [scaled_run(1, [0.2, 0.6], target=0.8), scaled_run(2, [0.1, 0.9])]
    target = target_of(both)
    assert target is not None and [target.examples(run) for run in both] == [None, pytest.approx(187.5)]
    both = [scaled_run(1, None, [3.0, 2.0, 1.5]), scaled_run(2, None, [2.5, 1.0, 0.5])]
    target = target_of(both)
    assert target is not None and target.words == "a training loss of 1.50"
    assert [target.examples(run) for run in both] == [300.0, pytest.approx(100 + 100 / 1.5)]
    assert target_of([]) is None


def part_of(run: ScaledRun) -> Scale:
    part = scale_of([run])
    assert part is not None
    return part


def test_each_strategy_is_compared_with_its_fewest_workers() -> None:
    runs = [
        scaled_run(2, [0.5], batch=5.0), scaled_run(1, [0.5]), scaled_run(2, [0.5]),
        scaled_run(2, [0.5], strategy="y"), scaled_run(4, [0.5], strategy="y"),
    ]  # fmt: skip
    align(runs)
    assert [run.base[0].workers for run in runs] == [1, 1, 1, 2, 2]
    names = [f"{run.strategy}-workers={run.workers}" for run in runs]
    arms: Any = [(SimpleNamespace(name=name), part_of(run)) for name, run in zip(names, runs, strict=True)]
    assert [(curve.strategy, curve.regime, [row.batch for row in curve.rows]) for curve in curves_in(arms)] == [
        ("x", "weak", [10.0, 20.0]), ("x", "strong", [10.0, 10.0]), ("y", "weak", [20.0, 40.0])
    ]  # fmt: skip
    assert [part_of(run).speedup for run in runs] == [2.0, 1.0, 2.0, 1.0, 2.0]
    assert scale_of([scaled_run(1, [0.5])]) is None


def test_examples_of_simulated_workers_follow_from_the_noise() -> None:
    foreseen = {"workers": 6, "steps_per_second": 40.0, "waiting_share": 0.2, "communication_share": 0.1}
    runs = [scaled_run(1, [0.3, 0.6]), scaled_run(2, [0.4, 0.6], simulated=(foreseen,))]
    align(runs)
    (six,) = part_of(runs[1]).simulated
    assert (six.workers, six.examples_per_second, six.batch) == (6, 400.0, 60.0)
    assert (six.examples, six.example_speedup, six.speedup) == (None, None, 4.0)
    noise = Noise(step=1, optimizer="1", time=0.0, gradients=2, signal=1.0, noise=6.0, own=1.0, mean=1.0)
    runs[1].noise = NoiseFigures([noise], [], 10.0)
    (six,) = part_of(runs[1]).simulated
    assert six.examples == pytest.approx(200.0 * (1 + 6 / 6) / (1 + 2 / 6))
    assert six.speedup == pytest.approx(4.0 * 200.0 / (six.examples or 0))


def test_a_comparison_of_numbers_of_workers_is_one_of_strategies(tmp_path: Path) -> None:
    summary = summarize(make_scaled_comparison(tmp_path))
    assert (summary.title, summary.workers, summary.baseline) == ("digits on 1, 2 and 4 workers", 4, arm_name(1))
    assert any(warning.endswith("sgp-workers=4, seed 0: too short") for warning in summary.warnings)
    assert set(summary.fairness.differed["batch"].values()) == {None, 8}
    view = View(summary)
    assert [view.workers(arm) for arm in summary.arms] == [1, 2, 4, 1, 2, 4]
    curves = curves_in(TOPIC.arms(view))
    assert [(curve.strategy, curve.regime) for curve in curves] == [("all-reduce", "weak"), ("sgp", "weak")]
    assert [row.workers for row in curves[0].rows] == [1, 2, 4, 8]
    assert [row.cost == row.worker_seconds for row in curves[0].rows] == [True] * 4
    root = parsed(f"<html>{TOPIC.section(view)}</html>")
    section = root.one("section", id="scale")
    assert "8 (simulated)" in section.text and curves[1].sentence()[1:] in section.text
    assert len(section.all("svg")) == 2 * 4
    assert curves[0].sentence() in markdown(summary) and "| 8 (simulated) |" in markdown(summary)
    rows = tables(summary)["scale"].splitlines()
    assert len(rows) == 1 + 7 and rows[4].startswith("all-reduce-workers=4,8,64")


def arm_name(workers: int) -> str:
    return f"all-reduce-workers={workers}"


def test_other_comparisons_and_single_runs_have_none_of_it(tmp_path: Path) -> None:
    folder = make_scaled_comparison(tmp_path / "x")
    single = summarize(folder / arm_name(2) / "seed-0")
    assert not TOPIC.section(View(single)) and "Number of workers" not in markdown(single)
    other = summarize(make_run(tmp_path / "y"))
    assert [TOPIC.of(arm) for summary in (single, other) for arm in summary.arms] == [None, None]
