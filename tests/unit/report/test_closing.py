"""The line a run ends with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quorate.records.records import records_of
from quorate.report import closing
from quorate.report.closing import closing_line
from tests.support.made_records import make_run


def test_who_held_the_others_up(tmp_path: Path) -> None:
    said = closing_line(make_run(tmp_path / "x", steps=120))
    assert said is not None
    assert re.fullmatch(
        r"120 steps in 4\.9\d s \(24\.\d steps/s, 77\d examples/s\); rank 3 arrived last in 100% of the steps, "
        r"1\d\.\d ms after the first; 3\d% of the others' time was waiting; records in \S+/x",
        said,
    )


def test_nobody_held_the_others_up(tmp_path: Path) -> None:
    said = closing_line(make_run(tmp_path, slow_rank=None, one_of=0.03))
    assert said is not None and re.search(
        r"; no rank is significantly slower than the others; \d\d% of the time was waiting for", said
    )


def test_no_share_is_told_of_steps_that_took_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "share_of", lambda activity, spent: None)
    said = closing_line(make_run(tmp_path, slow_rank=None, one_of=0.03))
    assert said is not None
    assert "no rank is significantly slower" in said and "of the time" not in said


def test_a_rank_that_waits_for_its_data_is_named(tmp_path: Path) -> None:
    path = records_of(make_run(tmp_path, slow_rank=None, one_of=0.03), 2)
    lines = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row["kind"] == "step":
            row |= {"data": row["data"] + 0.5 * row["compute"], "compute": 0.5 * row["compute"]}
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n")
    said = closing_line(tmp_path)
    assert said is not None and re.search(r"; rank 2 waited for data \d\d% of the time \(quorate doctor --data\)", said)


def test_where_nobody_waits(tmp_path: Path) -> None:
    said = closing_line(make_run(tmp_path / "x", waits=False))
    assert said is not None
    assert re.fullmatch(
        r"66 steps in 1\.\d\d s \(\S+ steps/s, 1,\d{3} examples/s\); 71 rounds, 3\.\d of 4 workers in each, 4\d% "
        r"fresh, effective batch 2\d\.\d; rank 3 needs 3\d\.\d ms per step, 1\.\dx the others; "
        r"0\.\d% of the time was waiting, \d\d% if all had waited; records in \S+/x",
        said,
    )


def test_where_the_quorum_changed(tmp_path: Path) -> None:
    path = records_of(make_run(tmp_path, waits=False), 0)
    changes = {5: {"wait_for": 4}, 9: {"max_staleness": 2}, 12: {"wait_for": 2}}
    lines = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        settings = changes.get(row["number"]) if row["kind"] == "round" else None
        lines.append(json.dumps(row if settings is None else {**row, "settings": settings, "why": "it was measured"}))
    path.write_text("\n".join(lines) + "\n")
    said = closing_line(tmp_path)
    assert said is not None and "; the quorum: changed to 4, then 2; rank 3" in said


def test_rounds_of_examples_that_nobody_counted(tmp_path: Path) -> None:
    said = closing_line(make_run(tmp_path, waits=False, counts_examples=False))
    assert said is not None and "% fresh; rank 3 needs" in said and "effective" not in said


def test_rounds_of_a_run_of_hardly_any_steps(tmp_path: Path) -> None:
    said = closing_line(make_run(tmp_path, waits=False, steps=2))
    assert said is not None and "rounds, " in said


def test_of_a_long_run_all_rounds_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, waits=False, steps=600)
    whole = closing_line(tmp_path)
    monkeypatch.setattr(closing, "MOST_BYTES", 4 << 15)
    part = closing_line(tmp_path)
    assert whole is not None and part is not None and "(lately" in part
    rounds = re.search(r"; (\d+) rounds, 3\.\d of 4 workers in each, 4\d% fresh, effective batch 2", whole)
    assert rounds is not None and f"; {rounds[1]} rounds, 3." in part
    assert "; rank 3 needs 3" in part
    assert part.partition(" of the time was waiting")[2].startswith(";"), "no steps of equal number were read"


def test_a_quorum_of_all_waits_as_all_reduce_does(tmp_path: Path) -> None:
    """Rounds that have everybody in them, and fresh: who came last is said, and nothing of what might have been."""
    make_run(tmp_path)
    rows = records_of(tmp_path, 0).read_text().splitlines()
    number = 0
    with open(records_of(tmp_path, 0), "w") as file:
        for row in rows:
            if '"kind":"step"' in row:
                number += 1
                taken = {str(rank): [[0, 1]] for rank in range(4)}
                time = json.loads(row)["end"] - 0.001
                fields = {"number": number, "time": time, "weight": 4.0, "live": 4, "contributors": taken}
                file.write(json.dumps({"kind": "round", **fields}) + "\n")
            file.write(row + "\n")
    said = closing_line(tmp_path)
    assert said is not None
    assert "60 rounds, 4.0 of 4 workers in each, 100% fresh, effective batch 32.0; rank 3 arrived last in 100%" in said
    assert re.search(r"; 3\d% of the others' time was waiting; records", said) and "if all had waited" not in said


def test_alone(tmp_path: Path) -> None:
    said = closing_line(make_run(tmp_path, ranks=1, slow_rank=None))
    assert said is not None and re.fullmatch(r"60 steps in \S+ s \(\S+ steps/s, \d+ examples/s\); records in \S+", said)


def test_in_virtual_time(tmp_path: Path) -> None:
    said = closing_line(make_run(tmp_path, is_virtual=True))
    assert said is not None and " s of virtual time (" in said


def test_examples_that_nobody_counted(tmp_path: Path) -> None:
    said = closing_line(make_run(tmp_path, counts_examples=False))
    assert said is not None and "steps/s);" in said and "examples/s" not in said


@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_of_hardly_any_steps(tmp_path: Path, steps: int) -> None:
    said = closing_line(make_run(tmp_path, steps=steps))
    assert said is not None and said.startswith(f"{steps} step")


def test_without_steps_nothing_is_said(tmp_path: Path) -> None:
    assert closing_line(tmp_path) is None
    assert closing_line(make_run(tmp_path, steps=1, fails_at=1)) is None


def test_of_a_long_run_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, steps=600)
    whole = closing_line(tmp_path)
    monkeypatch.setattr(closing, "MOST_BYTES", 4 << 15)
    part = closing_line(tmp_path)
    assert whole is not None and part is not None
    assert "s (24.2 steps/s, 774 examples/s)" in whole
    assert re.search(r"\(lately 24\.\d steps/s, 77\d examples/s\)", part)
    assert "rank 3 arrived last in 100% of the steps" in part
    assert part.startswith("600 steps in ")


def test_it_needs_nothing_heavy() -> None:
    program = (
        "import sys, quorate.report.closing; print([m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_report_needs_no_torch() -> None:
    program = "import sys, quorate.report.summary; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
