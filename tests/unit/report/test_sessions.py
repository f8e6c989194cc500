"""Runs that were resumed: what was done again counts once, and neither it nor the pause is training time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quorate.report.figures.throughput import training_seconds
from quorate.report.reading.run import read_run


def session(first: int, last: int, now: float, wall: float) -> list[dict[str, Any]]:
    """Steps of 0.1 s from `now` on, and a log after each."""
    rows: list[dict[str, Any]] = [{"kind": "start", "rank": 0, "size": 1, "now": now - 0.05, "wall": wall - 0.05}]
    for place, number in enumerate(range(first, last + 1)):
        begin = now + 0.1 * place
        rows.append({
            "kind": "step", "optimizer": "model", "step": number, "round": number, "begin": begin,
            "arrive": begin + 0.09, "end": begin + 0.1, "examples": 8,
        })  # fmt: skip
        rows.append({"kind": "log", "step": number, "time": begin + 0.1, "values": {"loss": 1.0 / number}})
    return rows


@pytest.mark.parametrize("later", [100.0, -3000.0], ids=["the same clock", "the machine was started anew"])
def test_what_was_done_again_counts_once(later: float, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    rows = session(1, 36, 5000.0, 1e9) + session(31, 60, 5000.0 + later, 1e9 + 100.0)
    (tmp_path / "rank-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (records,) = read_run(tmp_path).ranks
    assert [step.step for step in records.steps] == list(range(1, 61))
    assert [log.step for log in records.logs] == list(range(1, 61))
    assert records.steps[29].end == pytest.approx(5003.0)
    assert records.steps[30].begin == pytest.approx(5100.0, abs=0.01)
    assert training_seconds(read_run(tmp_path)) == pytest.approx(6.0, abs=0.2)
