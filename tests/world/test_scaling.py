"""`quorate compare --workers` from outside: runs, a simulation past the machine, the page, and going on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.programs import quorate


def test_several_numbers_of_workers(tmp_path: Path) -> None:
    options = ["--workers", "1,2,3", "--most", "2", "--scaling", "both", "--price", "3600", "--seeds", "1"]
    done = quorate(tmp_path, "compare", *options, "--name", "x", "--epochs", "4", "--json", "least-squares")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    rows = {(row["regime"], row["workers"]): row for row in summary["rows"]}
    assert list(rows) == [("weak", 1), ("weak", 2), ("weak", 3), ("strong", 1), ("strong", 2)]
    assert [row["is_simulated"] for row in rows.values()] == [False, False, True, False, False]
    for row in rows.values():
        assert row["cost"] == pytest.approx(row["worker_seconds"])
        if row["speedup"] is not None:
            assert row["speedup"] == pytest.approx(row["time_speedup"] * row["pass_speedup"])
    assert summary["pass_words"] == "a pass over the data"
    two = rows["weak", 2]
    assert two["batch"] == 2 * rows["weak", 1]["batch"] and rows["strong", 2]["batch"] == rows["weak", 1]["batch"]
    assert two["step"]["communication"] > 0 and 0 < two["passes"] <= 4
    assert rows["weak", 3]["pass_seconds"] > 0
    folder = tmp_path / "runs" / "x"
    page = (folder / "report.html").read_text()
    assert summary["verdict"] in page and (folder / "weak-2" / "report.html").exists()

    shutil.rmtree(folder / "weak-2" / "all-reduce")
    (folder / "report.html").unlink()
    again = quorate(tmp_path, "compare", "--continue", "x")
    assert again.returncode == 0, again.stderr
    assert "Of 1, 2 and 3 workers, " in again.stdout and "3 (simulated)" in again.stdout
    assert (folder / "weak-2" / "all-reduce" / "seed-0" / "outcome.json").exists()
    (folder / "report.html").unlink()
    assert quorate(tmp_path, "report", "x").returncode == 0
    assert (folder / "report.html").exists()
