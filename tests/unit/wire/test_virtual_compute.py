"""Models of compute times: their distributions, that they are drawn by counting, and how they are written."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from quorate.core.durations import Batches, traces
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual import Constant, Sampled, Trace, parse_compute


def test_draws_depend_on_nothing_but_seed_rank_and_step() -> None:
    model = Sampled("lognormal", 0.01, 0.5, seed=4)
    forwards = [model(rank, step) for rank in range(4) for step in range(10)]
    backwards = [model(rank, step) for rank in reversed(range(4)) for step in reversed(range(10))]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) == 40
    assert forwards != [Sampled("lognormal", 0.01, 0.5, seed=5)(r, s) for r in range(4) for s in range(10)]


def test_distributions_are_what_they_say() -> None:
    def draws(model: Sampled) -> list[float]:
        return [model(rank, step) for rank in range(20) for step in range(500)]

    normal = draws(Sampled("normal", 0.010, 0.002))
    assert statistics.mean(normal) == pytest.approx(0.010, rel=0.01)
    assert statistics.stdev(normal) == pytest.approx(0.002, rel=0.05)
    assert statistics.median(draws(Sampled("lognormal", 0.010, 0.5))) == pytest.approx(0.010, rel=0.05)
    uniform = draws(Sampled("uniform", 0.005, 0.020))
    assert statistics.mean(uniform) == pytest.approx(0.0125, rel=0.02)
    assert 0.005 <= min(uniform) < 0.0051
    assert 0.0199 < max(uniform) <= 0.020
    assert min(draws(Sampled("normal", 0.001, 0.002))) == 0.0


def test_traces_start_again_when_used_up() -> None:
    shared, own = Trace([1.0, 2.0]), Trace({0: [1.0], 1: [2.0, 3.0]})
    assert [shared(1, step) for step in range(3)] == [1.0, 2.0, 1.0]
    assert [own(1, step) for step in range(3)] == [2.0, 3.0, 2.0]
    with pytest.raises(ConfigurationError, match="rank 2"):
        own(2, 0)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("constant:10ms", Constant(0.01)),
        ("constant:0.5s", Constant(0.5)),
        ("constant:2s", Constant(2.0)),
        ("constant:1e-3s", Constant(0.001)),
        ("normal:10ms:2ms", Sampled("normal", 0.01, 0.002, 7)),
        ("lognormal:10ms:0.5", Sampled("lognormal", 0.01, 0.5, 7)),
        ("uniform:500us:20ms", Sampled("uniform", 0.0005, 0.02, 7)),
        ("trace:ucf101-lstm", Batches(traces.get("ucf101-lstm"), 7)),
        ("trace:wmt16-transformer:x0.1", Batches(traces.get("wmt16-transformer"), 7, 0.1)),
    ],
)
def test_models_are_written(text: str, model: object) -> None:
    assert parse_compute(text, seed=7) == model


@pytest.mark.parametrize(
    ("lines", "model"),
    [
        ("0.1\n\n0.2\n", Trace([0.1, 0.2])),
        ('{"seconds": 0.1, "step": 1}\n', Trace([0.1])),
        ('{"rank": 1, "seconds": 0.1}\n{"rank": 0, "seconds": 0.3}\n', Trace({1: [0.1], 0: [0.3]})),
    ],
)
def test_traces_are_read(tmp_path: Path, lines: str, model: Trace) -> None:
    path = tmp_path / "times.jsonl"
    path.write_text(lines)
    assert parse_compute(f"trace:{path}") == model


@pytest.mark.parametrize(
    "lines", ["", "0.1\nx\n", "[1]\n", '{"rank": 0}\n', '0.1\n{"rank": 0, "seconds": 1}\n', "-1\n"]
)
def test_wrong_traces_are_refused(tmp_path: Path, lines: str) -> None:
    path = tmp_path / "times.jsonl"
    path.write_text(lines)
    with pytest.raises(ConfigurationError):
        parse_compute(f"trace:{path}")


@pytest.mark.parametrize(
    "text",
    [
        "", "10ms", "constant", "constant:", "constant:ten", "constant:10week", "constant:-1ms", "constant:1:2",
        "normal:10ms", "uniform:20ms:5ms", "lognormal:10ms:x", "gamma:1:2", "trace", "trace:", "trace:/no/such/file",
        "constant:1e999", "trace:ucf101-lstm:y", "trace:nobody-knows",
    ],
)  # fmt: skip
def test_wrong_models_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_compute(text)
