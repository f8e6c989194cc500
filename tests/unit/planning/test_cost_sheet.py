"""The cost sheet of a step: shares, least seconds, and what to cut."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorate.cli.doctor.cost import step_of
from quorate.planning.cost_sheet import Layer, Sheet, Step, cuts
from quorate.simulation.links import links_from

FAST = Layer(
    name="up", kind="Linear", parameters=250_000, flops=6e9, kept=1000, moved=1_000_000, forward=0.02, backward=0.04,
    gradients=1_000_000,
)  # fmt: skip
NORM = Layer(
    name="norm", kind="LayerNorm", parameters=0, flops=0.0, kept=500, moved=2_000_000, forward=0.01, backward=0.02,
    gradients=0,
)  # fmt: skip
SHEET = Sheet(
    layers=[FAST, NORM], seconds=0.12, data=0.01, update=0.01, peak=200e9, bandwidth=1e9, state=2_000_000, steps=[0.12]
)
LINKS = links_from("50us:10Gbit")


def test_the_lines_are_the_step() -> None:
    assert SHEET.in_layers == pytest.approx(0.09) and SHEET.outside == pytest.approx(0.01)
    assert SHEET.total == pytest.approx(SHEET.seconds)
    assert replace(SHEET, seconds=0.1).outside == 0.0, "layers were timed in other steps"


def test_shares_of_the_peak() -> None:
    """6 GFLOP in 60 ms are half of 200 GFLOP/s."""
    assert SHEET.share_of_peak(FAST) == pytest.approx(0.5) and SHEET.share_of_peak(NORM) == 0
    assert SHEET.above_least(FAST) == pytest.approx(0.03)
    assert SHEET.above_least(NORM) == pytest.approx(0.03 - 3 * 2e6 / 1e9), "its bytes take as long"
    assert SHEET.above_least(replace(NORM, moved=0)) == 0, "a module that contains others"


def test_the_update() -> None:
    assert SHEET.update_of(FAST) == 0.01 and SHEET.update_of(NORM) == 0
    assert SHEET.least_update == pytest.approx((3 * 1e6 + 2 * 2e6) / 1e9)
    assert replace(SHEET, update=0.001).least_update == 0.001


def test_many_workers() -> None:
    """The wire takes longer among more; equal steps do not wait for each other."""
    alone, two, many = (step_of(SHEET, workers, LINKS) for workers in (1, 2, 64))
    assert alone.seconds == pytest.approx(0.12) and alone.wire == alone.wait == 0
    assert 0 < two.wire < many.wire and many.wire == pytest.approx(LINKS.all_reduce(10**6, 64).seconds, rel=0.02)
    for step in (two, many):
        assert step.wait == pytest.approx(0) and (step.data, step.update) == (0.01, 0.01)
        assert step.compute == pytest.approx(alone.compute)
    halved = step_of(SHEET, 64, LINKS, 0.5)
    assert many.seconds - halved.seconds == pytest.approx(LINKS.all_reduce(500_000, 64).transmission, rel=0.02)


def test_steps_that_vary_wait_for_each_other() -> None:
    uneven = replace(SHEET, steps=[0.1, 0.1, 0.16])
    assert step_of(uneven, 1, LINKS).seconds == pytest.approx(0.12)
    waits = [step_of(uneven, workers, LINKS).wait for workers in (2, 8, 64)]
    assert waits == sorted(waits) and waits[0] > 0.01 and waits[2] == pytest.approx(0.04, abs=0.005)


def test_the_greatest_cuts_come_first() -> None:
    step = Step(workers=8, compute=0.1, wire=0.05, wait=0.02, data=0.001, update=0.01)
    halved = replace(step, wire=0.01)
    named = [(cut.kind, round(cut.seconds, 4)) for cut in cuts(SHEET, step, halved, "Adam", "train.py")]
    assert named == [("layers", 0.054), ("wire", 0.04), ("wait", 0.02)]
    (layers, *_) = cuts(SHEET, step, halved, "Adam", "train.py")
    assert "above all up, norm" in layers.advice
    even = Step(workers=1, compute=0.1, wire=0.0, wait=0.0, data=0.09, update=0.01)
    ranked = cuts(replace(SHEET, layers=[], update=0.0), even, even, "Adam", "train.py")
    assert [cut.kind for cut in ranked] == ["outside", "data"], "the rest is not worth a sentence"
