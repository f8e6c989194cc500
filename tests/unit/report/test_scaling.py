"""The speed-up of more workers taken apart, what is lost to what, and the sentence about it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorate.report.parts import View
from quorate.report.runs import RunFigures
from quorate.report.scaling.figures import Measured, ScalingRow, ScalingSummary, rows_of, worth_having
from quorate.report.scaling.page import scaling_page
from quorate.report.scaling.summary import Trained, aim_of
from quorate.report.scaling.verdict import lines_of, verdict_of, warnings_of
from quorate.report.schema import Metric
from quorate.report.topics.quality import Curve, Curves
from tests.architecture.tree import ROOT
from tests.support.made_summaries import made_summary
from tests.support.parsed_pages import parsed


def made(
    workers: int, rate: float, examples: float | None = 6000.0, *, step: tuple[float, float, float], **more: Any
) -> Measured:
    parts = dict(zip(("compute", "waiting", "communication"), step, strict=True))
    reached = [] if examples is None else [examples]
    return Measured(
        regime="weak", workers=workers, rates=[rate], examples=reached, batch=10.0, step=parts, **more
    )  # fmt: skip


MEASURED = (
    made(4, 300.0, 8000.0, step=(0.100, 0.030, 0.0033)),
    made(1, 100.0, 6000.0, step=(0.100, 0.0, 0.0)),
    made(2, 190.0, 6000.0, step=(0.100, 0.004, 0.001), noise=6.0),
)


def test_the_speed_up_is_the_product_of_two_ratios() -> None:
    single, two, four = rows_of(MEASURED, 1000.0, price=36.0)
    assert [row.workers for row in (single, two, four)] == [1, 2, 4]
    assert (single.pass_seconds, single.passes, single.target_seconds) == (10.0, 6.0, 60.0)
    assert (single.speedup, single.efficiency, single.losses, single.limit) == (1.0, 1.0, {}, None)
    assert (two.time_speedup, two.pass_speedup, two.speedup) == (pytest.approx(1.9), 1.0, pytest.approx(1.9))
    assert (four.time_speedup, four.pass_speedup) == (pytest.approx(3.0), 0.75)
    assert four.speedup == pytest.approx(2.25) == 60.0 / (four.target_seconds or 0)
    assert four.efficiency == pytest.approx(2.25 / 4)
    assert (four.batch, four.worker_seconds) == (40.0, pytest.approx(4 * 80 / 3))
    assert four.cost == pytest.approx(4 * 80 / 3 / 100)


def test_what_is_lost_is_dealt_out_by_what_takes_longer() -> None:
    _, two, four = rows_of(MEASURED, 1000.0, price=None)
    assert two.losses == {
        "batch": 0.0,
        "computing": 0.0,
        "waiting": pytest.approx(0.05 * 0.8),
        "wire": pytest.approx(0.05 * 0.2),
    }
    assert two.limit is None and two.cost is None
    assert four.losses["waiting"] == pytest.approx(0.25 * 0.030 / 0.0333)
    assert (four.losses["batch"], four.limit) == (0.25, "batch")


def test_passes_of_simulated_workers_follow_from_the_noise() -> None:
    simulated = Measured(
        regime="weak", workers=6, is_simulated=True, rates=[400.0], batch=10.0, step={"compute": 0.1, "waiting": 0.05}
    )
    measured = MEASURED[1:]
    *_, six = rows_of((*measured, simulated), 1000.0, price=None)
    assert six.passes == pytest.approx(6.0 * (1 + 6 / 6) / (1 + 2 / 6))
    assert six.is_simulated and six.speedup == pytest.approx(4.0 * 6.0 / (six.passes or 0))
    *_, six = rows_of((measured[0], simulated), 1000.0, price=None)
    assert (six.passes, six.speedup, six.time_speedup) == (None, None, 4.0)
    assert six.efficiency == pytest.approx(4 / 6) and six.worker_seconds == pytest.approx(6 * 2.5)


def test_regimes_are_apart() -> None:
    strong = [row.__class__(**{**vars(row), "regime": "strong", "batch": 10.0 / row.workers}) for row in MEASURED]
    rows = rows_of((*MEASURED, *strong), 1000.0, None)
    assert [(row.regime, row.workers, row.batch) for row in rows] == [
        ("weak", 1, 10.0), ("weak", 2, 20.0), ("weak", 4, 40.0), ("strong", 1, 10.0), ("strong", 2, 10.0),
        ("strong", 4, 10.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rates", "best"), [([100, 190, 300, 390], 4), ([100, 190, 360, 400], 4), ([100, 140, 300], 1), ([100, 200], 2)]
)
def test_the_most_workers_that_bring_half_of_what_they_could(rates: list[float], best: int) -> None:
    measured = [made(2**place, rate, step=(0.1, 0.0, 0.0)) for place, rate in enumerate(rates)]
    assert worth_having(rows_of(measured, 1000.0, None)).workers == best


def rows() -> tuple[ScalingRow, ...]:
    return rows_of(MEASURED, 1000.0, price=36.0)


def test_the_verdict_is_one_sentence() -> None:
    assert verdict_of(rows(), "top1 0.93", 36.0) == (
        "Of 1, 2 and 4 workers, 2 are worth having: 1.90 times as fast as 1 to top1 0.93 (1.90 by the time per pass, "
        "1.00 by the passes); 4 come to 2.25 times, where 25% of the passes are those that the larger batch "
        "takes more; 2 take 63.2 worker-seconds, 5.3% more than 1, which cost 0.632."
    )
    slow = rows_of([made(1, 100.0, step=(0.1, 0, 0)), made(2, 110.0, step=(0.1, 0.08, 0))], 1000.0, None)
    assert verdict_of(slow, None, None) == (
        "Of 1 and 2 workers, more than 1 are not worth having; 2 come to 1.10 times, where 45% of the time goes into "
        "waiting for others; 1 takes 60.0 worker-seconds, the least of all."
    )


def test_what_a_reader_has_to_know() -> None:
    simulated = Measured(regime="weak", workers=64, is_simulated=True, rates=[900.0], batch=10.0, step={})
    failed = Measured(regime="weak", workers=3, step={})
    cautions = list(warnings_of(rows_of((*MEASURED[:2], failed, simulated), 1000.0, None), cores=2))
    assert [caution.partition(":")[0] for caution in cautions[:1]] == ["64 workers are simulated"]
    assert any(caution.startswith("no noise scale is known") for caution in cautions)
    assert any(caution.startswith("3 and 4 workers share 2 cores") for caution in cautions)
    assert any(caution.startswith("one seed only") for caution in cautions)
    assert "3 workers: no run ended well, or none was long enough to measure" in cautions


def test_the_page_has_the_curves_and_all_numbers() -> None:
    summary = ScalingSummary(
        title="digits under all-reduce with 1, 2 and 4 workers", world="real", strategy="all-reduce",
        verdict=verdict_of(rows(), "top1 0.93", 36.0), warnings=("one seed only",), target="top1 0.93",
        pass_examples=1000.0, pass_words="a pass over the data", price=36.0, rows=rows(),
        command=("quorate", "compare"),
    )  # fmt: skip
    root = parsed(scaling_page(summary, View(made_summary())))
    assert [part.attributes["id"] for part in root.all("section")] == ["verdict", "curves", "time"]
    assert len(root.one("section", id="curves").all("svg")) >= 2
    text = root.one("section", id="verdict").text
    assert "batch 25%" in text and "2.25" in text and "0.632" in text and "one seed only" in text
    lines = list(lines_of(summary))
    assert lines[0] == summary.verdict and sum(line.startswith(("1 ", "2 ", "4 ")) for line in lines) == 3


def test_the_reference_names_every_field() -> None:
    text = (ROOT / "docs" / "reference" / "summary.md").read_text(encoding="utf-8")
    own = text.partition("## `ScalingSummary`")[2]
    assert all(f"`{name}`" in own for kind in (ScalingSummary, ScalingRow) for name in kind.model_fields)


def trained(
    quality: list[list[float]] | None, losses: list[list[float]], *, target: float | None = None, higher: bool = True
) -> list[Trained]:
    """A run for each curve, evaluated after 100, 200, ... examples."""

    def curve(values: list[float]) -> Curve:
        examples = tuple(100 * (place + 1) for place in range(len(values)))
        return Curve(
            seed=0, seconds=tuple(map(float, examples)), examples=examples, bytes=examples, quality=tuple(values)
        )

    metric = None if quality is None else Metric(name="top1", higher_is_better=higher)
    plan = cast(Any, SimpleNamespace(metric=metric, target=target))
    return [
        Trained(
            "weak", place + 1, plan,
            [cast(RunFigures, SimpleNamespace(topics={"quality": curves}))],
        )
        for place, curves in enumerate(
            Curves(curves=(curve(quality[place]),) if quality else (), losses=(curve(own),))
            for place, own in enumerate(losses)
        )
    ]  # fmt: skip


def test_passes_are_to_the_best_that_every_run_has_reached() -> None:
    both = trained([[0.2, 0.6, 0.5], [0.1, 0.3, 0.9]], [[3.0, 2.0, 1.0]] * 2)
    aim = aim_of(both)
    assert aim is not None and (aim.words, aim.value) == ("top1 0.600", 0.6)
    assert [aim.examples(run) for entry in both for run in entry.runs] == [200.0, pytest.approx(250.0)]
    lower = aim_of(trained([[0.2, 0.6], [0.3, 0.1]], [[3.0], [2.0]], higher=False))
    assert lower is not None and lower.value == 0.2


def test_a_target_may_be_missed_and_losses_stand_in_for_quality() -> None:
    both = trained([[0.2, 0.6], [0.1, 0.9]], [[3.0], [2.0]], target=0.8)
    aim = aim_of(both)
    assert aim is not None and [aim.examples(run) for entry in both for run in entry.runs] == [
        None,
        pytest.approx(187.5),
    ]
    both = trained(None, [[3.0, 2.0, 1.5], [2.5, 1.0, 0.5]])
    aim = aim_of(both)
    assert aim is not None and aim.words == "a training loss of 1.50"
    assert [aim.examples(run) for entry in both for run in entry.runs] == [300.0, pytest.approx(100 + 100 / 1.5)]
