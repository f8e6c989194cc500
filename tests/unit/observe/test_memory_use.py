"""The memory of a process, and when rows report it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from quorate.observe import memory_use as module
from quorate.observe.memory_use import LOOK_EVERY, LOOK_SHARE, ROW_EVERY, InUse, MemoryUse, in_use
from quorate.records.records import Recorder, rows
from tests.support.processes import run_real_board

_BYTES = 64 << 20


def looked(board: object, rank: int, size: int) -> list[InUse]:
    """Before, while and after there are 64 MB, in a process that has freed nothing large before."""
    uses = [in_use()]
    x = torch.ones(_BYTES, dtype=torch.uint8)
    uses.append(in_use())
    del x
    return [*uses, in_use()]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere it is not known")
def test_what_is_allocated_is_live_and_what_is_given_back_is_not() -> None:
    ((before, there, after),) = run_real_board(1, looked)
    if before.live is not None and there.live is not None and after.live is not None:
        assert there.live - before.live == pytest.approx(_BYTES, rel=0.05)
        assert after.live - before.live < 1 << 20
    assert before.resident is not None and there.resident is not None
    assert there.resident - before.resident > 0.9 * _BYTES


def test_where_nothing_is_known_rows_say_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_status", lambda: None)
    assert in_use() == InUse(None, None, None)
    use, recorder = MemoryUse(), Recorder(tmp_path / "rank-0.jsonl")
    use.begin(recorder, 1.0, is_on_gpu=False)
    recorder.close()
    assert list(rows(tmp_path / "rank-0.jsonl")) == [{"kind": "memory", "time": 1.0, "step": 0}]


def test_rows_come_now_and_then_and_keep_the_most(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[int] = []

    def now_in_use() -> InUse:
        seen.append(len(seen))
        return InUse(5, [8, 88, 18, 28][min(len(seen) - 1, 3)], 2)

    monkeypatch.setattr(module, "in_use", now_in_use)
    use, recorder = MemoryUse(), Recorder(tmp_path / "rank-0.jsonl")
    use.begin(recorder, 0.0, is_on_gpu=False)
    use.look(1.0)
    for number in range(4):
        use.look(1.0 + LOOK_EVERY / 2)
        use.stepped(1.0 + LOOK_EVERY / 2, number)
    assert len(seen) == 2, "too soon after the last look"
    use.stepped(ROW_EVERY + 1.0, 7)
    recorder.close()
    written: list[dict[str, Any]] = list(rows(tmp_path / "rank-0.jsonl"))
    assert [(row["step"], row["live"], row["peak_live"]) for row in written] == [(0, 10, 10), (7, 30, 90)]


def test_readings_that_take_long_are_rare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The C library counts all pieces of its memory, which took 30 ms beside JAX."""
    seen: list[int] = []

    def now_in_use() -> InUse:
        seen.append(len(seen))
        return InUse(5, 8, 2)

    seconds = iter(range(100))
    monkeypatch.setattr(module, "in_use", now_in_use)
    monkeypatch.setattr(module.time, "thread_time", lambda: 0.03 * next(seconds))
    use, recorder = MemoryUse(), Recorder(tmp_path / "rank-0.jsonl")
    use.begin(recorder, 0.0, is_on_gpu=False)
    rare = 0.03 / LOOK_SHARE
    for now in (1.0, 1.0 + 2 * LOOK_EVERY, 0.9 + rare):
        use.look(now)
    assert len(seen) == 2, "too soon after a reading that took long"
    use.look(1.1 + rare)
    assert len(seen) == 3
    recorder.close()


def test_without_records_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "in_use", lambda: pytest.fail("looked"))
    use = MemoryUse()
    use.look(1.0)
    use.stepped(100.0, 1)
    use.write(200.0, 2)
