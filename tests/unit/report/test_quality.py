"""Curves, where they end, and when they meet a target."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from quorate.records.records import records_of
from quorate.report.reading.run import RunRecords, read_run
from quorate.report.topics.quality import POINTS, Curve, curve_of, final_quality, losses_of, time_to, went_wrong
from tests.support.made_records import make_run


def step(number: int, begin: float, end: float, **more: Any) -> dict[str, Any]:
    values = {"examples": 10, "bytes_out": 5, **more}
    return {"kind": "step", "step": number, "optimizer": "1", "round": number, "begin": begin, "arrive": begin,
            "end": end, **values}  # fmt: skip


def log(time: float, **values: Any) -> dict[str, Any]:
    return {"kind": "log", "step": 0, "time": time, "values": values}


def run_of(folder: Path, *ranks: list[dict[str, Any]]) -> RunRecords:
    folder.mkdir(exist_ok=True)
    for rank, rows in enumerate(ranks):
        records_of(folder, rank).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_run(folder)


def curve(**values: tuple[float, ...]) -> Curve:
    zeros = tuple(0 for _ in values["seconds"])
    return Curve(seed=0, examples=zeros, bytes=zeros, **values)


def test_a_curve_over_training_time_examples_and_bytes(tmp_path: Path) -> None:
    evaluated = {"kind": "evaluate", "step": 1, "begin": 12.0, "end": 15.0}
    first = [step(1, 10.0, 12.0), evaluated, log(15.0, top1=0.25, other=7), step(2, 15.0, 17.0), log(17.5, top1=0.5)]
    second = [step(1, 10.5, 11.0), step(2, 11.0, 12.0), step(3, 12.0, 17.0)]
    curve = curve_of(run_of(tmp_path, first, second), "top1", seed=3)
    assert curve == Curve(seed=3, seconds=(2.0, 4.5), examples=(30, 50), bytes=(15, 25), quality=(0.25, 0.5)), (
        "three steps had ended by 15, all five by 17.5; three seconds were evaluation"
    )


def test_bytes_of_further_optimizers_count_and_their_examples_do_not(tmp_path: Path) -> None:
    rows = [step(1, 0.0, 1.0), step(1, 0.0, 1.0, optimizer="2", examples=None, bytes_out=100), log(2.0, top1=1)]
    curve = curve_of(run_of(tmp_path, rows), "top1", seed=0)
    assert curve is not None and (curve.examples, curve.bytes) == ((10,), (105,))


def test_examples_that_are_not_counted_are_left_out(tmp_path: Path) -> None:
    curve = curve_of(run_of(tmp_path, [step(1, 0.0, 1.0, examples=None), log(2.0, top1=1)]), "top1", seed=0)
    assert curve is not None and curve.examples == () and curve.bytes == (5,)


@pytest.mark.parametrize("values", [{}, {"top1": None}, {"top1": True}, {"top1": "high"}, {"loss": 1.0}])
def test_without_quality_there_is_no_curve(tmp_path: Path, values: dict[str, Any]) -> None:
    run = run_of(tmp_path, [step(1, 0.0, 1.0), log(1.0, **values)])
    assert curve_of(run, "top1", seed=0) is None and final_quality(run, "top1") is None


def test_only_rank_0_says_what_quality_is(tmp_path: Path) -> None:
    run = run_of(tmp_path, [step(1, 0.0, 1.0)], [step(1, 0.0, 1.0), log(1.0, top1=0.5)])
    assert curve_of(run, "top1", seed=0) is None and final_quality(run, "top1") is None


def test_without_rank_0_there_is_no_quality(tmp_path: Path) -> None:
    run = run_of(tmp_path, [], [step(1, 0.0, 1.0), log(1.0, top1=0.5)])
    records_of(tmp_path, 0).unlink()
    assert curve_of(read_run(tmp_path), "top1", seed=0) is None and run.has_steps


def test_a_training_that_diverged_has_no_final_quality(tmp_path: Path) -> None:
    rows = [step(1, 0.0, 1.0, loss=1.0), log(1.0, top1=0.5), step(2, 1.0, 2.0, loss=math.inf), log(2.0, top1=math.nan)]
    run = run_of(tmp_path, rows)
    curve = curve_of(run, "top1", seed=0)
    assert curve is not None and curve.quality == (0.5,)
    assert final_quality(run, "top1") is None
    assert went_wrong(run, "top1") == "the loss of rank 0 is not a number at step 2"
    lost = losses_of(run, seed=0)
    assert lost is not None and lost.quality == (1.0,)


def test_the_target_is_met_at_the_first_evaluation_that_is_as_good() -> None:
    rising = curve(seconds=(1.0, 2.0, 3.0, 4.0), quality=(0.1, 0.6, 0.5, 0.7))
    assert time_to(0.6, rising, higher_is_better=True) == 2.0
    assert time_to(0.65, rising, higher_is_better=True) == 4.0
    assert time_to(0.8, rising, higher_is_better=True) is None
    assert time_to(0.1, rising, higher_is_better=False) == 1.0
    assert time_to(0.05, rising, higher_is_better=False) is None


@pytest.mark.parametrize(("steps", "ranks"), [(3, 1), (150, 2), (1000, 3)])
def test_losses_are_means_over_ranks_and_neighbouring_steps(tmp_path: Path, steps: int, ranks: int) -> None:
    run = read_run(make_run(tmp_path, steps=steps, ranks=ranks, evaluate_every=0))
    curve = losses_of(run, seed=0)
    assert curve is not None
    assert len(curve.seconds) == (steps if steps <= POINTS else 200)
    first = [rank.steps[0].loss or 0.0 for rank in run.ranks]
    if steps <= POINTS:
        assert curve.quality[0] == pytest.approx(sum(first) / ranks)
    assert curve.examples[-1] == steps * ranks * 8 and curve.bytes[-1] == steps * ranks * 40_000
    assert list(curve.seconds) == sorted(curve.seconds)


def test_a_batch_that_ends_an_epoch_counts_by_its_examples(tmp_path: Path) -> None:
    rows = [
        step(1, 0.0, 1.0, loss=2.0, examples=8),
        step(2, 1.0, 2.0, loss=1.0, examples=9),
        step(3, 2.0, 3.0, loss=6.0, examples=1),
    ]
    curve = losses_of(run_of(tmp_path, rows), seed=0)
    assert curve is not None
    assert curve.quality == (2.0, 1.5) and curve.seconds == (1.0, 3.0)


def test_small_numbers_keep_their_digits(tmp_path: Path) -> None:
    curve = curve_of(run_of(tmp_path, [step(1, 0.0, 1.0), log(1.0, error=1.23456789e-9)]), "error", seed=0)
    assert curve is not None and curve.quality == (1.2345679e-9,)
