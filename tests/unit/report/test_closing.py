"""The line a run ends with."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert said is not None and re.search(r"; no rank was slow beyond chance; \d\d% of the time was waiting for", said)


def test_where_nobody_waits(tmp_path: Path) -> None:
    said = closing_line(make_run(tmp_path, waits=False))
    assert said is not None and re.search(
        r"; rank 3 took 3\d\.\d ms for a step, 1\.\d\d times what the others took;", said
    )


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
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_report_needs_no_torch() -> None:
    program = "import sys, quorate.report.write, quorate.report.summary; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
