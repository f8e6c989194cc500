"""Records on a disk that gets full: what is there stays readable, a sentence says so, and nobody is stopped."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quorate.records.records import Recorder, rows
from quorate.records.rows import Step
from tests.support.raw_rows import RawRow


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file grows beyond so many bytes: a write takes what fits, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def step(number: int) -> Step:
    return Step(step=number, optimizer="1", round=number, begin=0.0, arrive=0.0, end=float(number))


@pytest.mark.parametrize("closes", [False, True])
def test_what_was_written_stays_and_the_rest_is_left_out(tmp_path: Path, closes: bool) -> None:
    said: list[str] = []
    recorder = Recorder(tmp_path / "rank-0.jsonl", held=2, closes=closes, say=said.append)
    recorder.write(RawRow("start", rank=0))
    with room_for(2000):
        for number in range(1, 40):
            recorder.step(step(number))
    recorder.step(step(40))
    recorder.write(RawRow("end", time=1.0))
    recorder.close()
    text = (tmp_path / "rank-0.jsonl").read_text()
    assert text.endswith("}\n") and 1000 < len(text) <= 2000, "whole rows, as many as fitted"
    numbers = [row["step"] for row in rows(tmp_path / "rank-0.jsonl") if row["kind"] == "step"]
    assert numbers == list(range(1, len(numbers) + 1)), "and none behind a gap"
    path = tmp_path / "rank-0.jsonl"
    assert said == [f"the records in {path} end here (File too large); the training goes on without them"]


def test_a_folder_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    said: list[str] = []
    recorder = Recorder(tmp_path / "nowhere" / "rank-0.jsonl", say=said.append)
    recorder.write(RawRow("start", rank=0))
    recorder.close()
    assert len(said) == 1 and "No such file or directory" in said[0]


class Full:
    """A copy whose disk is full."""

    def row(self, values: Any) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        raise OSError(28, "No space left on device")


def test_a_copy_that_fails_ends_the_records_as_well(tmp_path: Path) -> None:
    said: list[str] = []
    recorder = Recorder(tmp_path / "rank-0.jsonl", copy=Full(), say=said.append)
    recorder.write(RawRow("start", rank=0))
    recorder.write(RawRow("end", time=1.0))
    recorder.close()
    assert len(said) == 1 and "No space left on device" in said[0]
    assert [row["kind"] for row in rows(tmp_path / "rank-0.jsonl")] == ["start"]
