"""Published batch times: what is drawn has the published range, mean and deviation."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys

import pytest

from quorate.core.durations import Batches, traces

PUBLISHED = {
    "ucf101-lstm": (0.201, 3.410, 1.235, 0.706),
    "wmt16-transformer": (0.179, 3.482, 0.475, 0.144),
    "cloud-resnet50": (0.399, 1.892, 0.454, 0.116),
}
each_trace = pytest.mark.parametrize("name", sorted(PUBLISHED))


def test_these_are_known() -> None:
    assert traces.names() == tuple(sorted(PUBLISHED))


@each_trace
def test_draws_have_the_published_mean_deviation_and_range(name: str) -> None:
    least, greatest, mean, deviation = PUBLISHED[name]
    draw = Batches(traces.get(name), seed=1)
    seconds = [draw(rank, step) for rank in range(8) for step in range(5000)]
    assert statistics.fmean(seconds) == pytest.approx(mean, rel=0.02)
    assert statistics.stdev(seconds) == pytest.approx(deviation, rel=0.02)
    assert least <= min(seconds) < least * 1.2
    assert mean < max(seconds) <= greatest


@each_trace
def test_the_shape_has_exactly_the_published_moments(name: str) -> None:
    least, greatest, mean, deviation = PUBLISHED[name]
    times, number = traces.get(name), 20_000
    quantiles = [times.quantile((i + 0.5) / number) for i in range(number)]
    assert quantiles == sorted(quantiles)
    assert least < quantiles[0] and quantiles[-1] <= greatest
    assert statistics.fmean(quantiles) == pytest.approx(mean, rel=5e-4)
    assert statistics.pstdev(quantiles) == pytest.approx(deviation, rel=5e-3)
    assert times.quantile(1 - 2**-53) == pytest.approx(greatest, rel=1e-6)


def test_a_factor_multiplies_every_draw_and_the_least() -> None:
    whole, tenth = Batches(traces.get("ucf101-lstm"), 3), Batches(traces.get("ucf101-lstm"), 3, 0.1)
    assert tenth(2, 5) == pytest.approx(whole(2, 5) / 10)
    assert (whole.least, tenth.least) == (0.201, pytest.approx(0.0201))


@each_trace
def test_the_summary_says_the_numbers(name: str) -> None:
    said = [int(number.replace(",", "")) for number in re.findall(r"\b[\d,]*\d\b", traces.summary(name))[-4:]]
    assert said == [round(1000 * value) for value in PUBLISHED[name]]


def test_no_torch_is_needed() -> None:
    code = "import quorate.inject.imbalance, quorate.inject.pace, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(filter(None, sys.path))})
