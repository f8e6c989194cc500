"""`quorate compare --scale` from outside: runs, a simulation past the machine, the page, and going on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.programs import quorate


def test_several_numbers_of_workers(tmp_path: Path) -> None:
    options = ["--scale", "1,2,3", "-n", "2", "--scaling", "both", "--price", "3600", "--seeds", "1"]
    done = quorate(tmp_path, "compare", *options, "--name", "x", "--epochs", "4", "--json", "least-squares")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    arms = {arm["name"].removeprefix("all-reduce-workers="): arm for arm in summary["arms"]}
    assert list(arms) == ["1", "2", "2-batch=16"]
    rows = {name: arm["scale"] for name, arm in arms.items()}
    for row in rows.values():
        assert row["cost"] == pytest.approx(row["worker_seconds"])
        if row["example_speedup"] is not None:
            assert row["speedup"] == pytest.approx(row["rate_speedup"] * row["example_speedup"])
    assert rows["2"]["batch"] == 2 * rows["1"]["batch"] and rows["2-batch=16"]["batch"] == rows["1"]["batch"]
    assert arms["2"]["examples"] == arms["1"]["examples"] and 0 < rows["2"]["examples"] <= arms["2"]["examples"]["mean"]
    (three,) = rows["2"]["simulated"]
    assert three["workers"] == 3 and three["examples_per_second"] > 0
    folder = tmp_path / "runs" / "x"
    assert "3 (simulated)" in (folder / "report.html").read_text()

    shutil.rmtree(folder / "all-reduce-workers=2")
    (folder / "report.html").unlink()
    again = quorate(tmp_path, "compare", "--continue", "x")
    assert again.returncode == 0, again.stderr
    assert ": of 1, 2 and 3 (simulated) workers, " in " ".join(again.stdout.split())  # lines are wrapped
    assert (folder / "all-reduce-workers=2" / "seed-0" / "outcome.json").exists()
    (folder / "report.html").unlink()
    assert quorate(tmp_path, "report", "x").returncode == 0
    assert "3 (simulated)" in (folder / "report.html").read_text()
