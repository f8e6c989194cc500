"""The calibration by a run: its latency, its times, and then the run itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.core.durations import Sampled
from quorate.core.errors import ConfigurationError
from quorate.simulation.calibrated import calibrated
from quorate.simulation.checked import Held, held_against
from tests.support.simulated_runs import make_simulated_run

COMPUTE = Sampled("lognormal", 0.05, 0.4, seed=2)
LATENCY = 0.003


@pytest.mark.parametrize("strategy", ["all-reduce", "ddp", "eager-solo", "eager-majority", "quorum", "sgp", "d-psgd"])
@pytest.mark.parametrize("workers", [2, 5])
def test_a_run_is_told_as_it_was(tmp_path: Path, strategy: str, workers: int) -> None:
    make_simulated_run(tmp_path / "run", strategy, COMPUTE, latency=LATENCY, workers=workers)
    calibration = calibrated(str(tmp_path / "run"))
    assert calibration.links.latency == pytest.approx(LATENCY, rel=0.05)
    assert calibration.busy.before(1, 3) == pytest.approx(COMPUTE(1, 3), abs=1e-5)
    held = {figure.name: figure for figure in held_against(calibration)}
    assert abs(held["steps per second"].off) < 0.05  # a microsecond decides who is in a round
    rounds = held.get("rounds per second")
    assert (rounds is None) == (strategy in ("sgp", "d-psgd"))
    assert rounds is None or abs(rounds.off) < 0.05


def test_what_was_injected_is_told_apart(tmp_path: Path) -> None:
    make_simulated_run(tmp_path / "run", "all-reduce", COMPUTE, latency=LATENCY)
    path = tmp_path / "run" / "rank-2.jsonl"
    text = path.read_text()
    path.write_text(text.replace('"delay":0.0,', '"delay":0.01,'))
    calibration = calibrated(str(tmp_path / "run"))
    assert calibration.undelayed.before(2, 0) == pytest.approx(calibration.busy.before(2, 0) - 0.01)
    assert calibration.undelayed.before(1, 0) == calibration.busy.before(1, 0)


def test_a_figure_holds_within_ten_percent() -> None:
    assert Held(name="x", recorded=10.0, simulated=10.9).holds
    assert not Held(name="x", recorded=10.0, simulated=11.1).holds
    assert Held(name="x", recorded=0.0, simulated=0.0).off == 0.0


def test_what_says_too_little_is_refused(tmp_path: Path) -> None:
    make_simulated_run(tmp_path / "short", "all-reduce", COMPUTE, latency=LATENCY, steps=10)
    with pytest.raises(ConfigurationError, match="too short to learn from: every worker needs 20 steps"):
        calibrated(str(tmp_path / "short"))
    make_simulated_run(tmp_path / "run", "all-reduce", COMPUTE, latency=LATENCY)
    first = tmp_path / "run" / "rank-0.jsonl"
    for name in ("run.json", *(f"rank-{rank}.jsonl" for rank in range(4))):
        path = tmp_path / "run" / name
        path.write_text(path.read_text().replace('"strategy"', '"was"'))
    with pytest.raises(ConfigurationError, match="do not say which strategy was used"):
        calibrated(str(tmp_path / "run"))
    first.unlink()
