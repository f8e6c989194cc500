"""Seconds by rank and step: traces of files and of published batch times."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.core.durations import Batches, Sampled, Trace, parse_sampled, parse_trace, traces
from quorate.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("trace:ucf101-lstm", Batches(traces.get("ucf101-lstm"), 7)),
        ("trace:cloud-resnet50:x0.1", Batches(traces.get("cloud-resnet50"), 7, 0.1)),
    ],
)
def test_published_batch_times_are_drawn(text: str, times: Batches) -> None:
    assert parse_trace(text, seed=7) == times


def test_a_file_is_read_and_may_be_scaled(tmp_path: Path) -> None:
    path = tmp_path / "times.txt"
    path.write_text("2\n4\n")
    assert parse_trace(f"trace:{path}", seed=0) == Trace([2.0, 4.0])
    assert parse_trace(f"trace:{path}:x0.5", seed=0) == Trace([1.0, 2.0])
    by_rank = tmp_path / "times.jsonl"
    by_rank.write_text('{"rank": 1, "seconds": 3}\n')
    assert parse_trace(f"trace:{by_rank}:x2", seed=0) == Trace({1: [6.0]})


def test_a_file_may_have_a_name_that_looks_like_a_factor(tmp_path: Path) -> None:
    path = tmp_path / "times:x2"
    path.write_text("1\n")
    assert parse_trace(f"trace:{path}", seed=0) == Trace([1.0])


@pytest.mark.parametrize("text", ["", "trace", "trace:", "traces:a", "lognormal:1:2", "constant:1"])
def test_what_is_no_trace_is_left_to_others(text: str) -> None:
    assert parse_trace(text, seed=0) is None


@pytest.mark.parametrize("text", ["", "normal", "normal:1", "normal:1:2:3", "constant:1", "trace:x"])
def test_what_is_no_distribution_is_left_to_others(text: str) -> None:
    assert parse_sampled(text, seed=0) is None


def test_a_distribution_is_read() -> None:
    assert parse_sampled("lognormal:10ms:1e+0", seed=4) == Sampled("lognormal", 0.01, 1.0, 4)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("trace:ucf101", "no file ucf101, and no trace of this name. Known: cloud-resnet50, ucf101-lstm"),
        ("trace:ucf101-lstm:xx", '"xx" in "trace:ucf101-lstm:xx" is not a factor'),
        ("trace:/", "the trace / is a folder, not a file"),
    ],
)
def test_wrong_traces_are_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        parse_trace(text, seed=0)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "times"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="cannot be read: it is not text"):
        parse_trace(f"trace:{path}", seed=0)


def test_missing_ranks_are_named() -> None:
    trace = Trace({0: [1.0], 1: [1.0]})
    trace.check_ranks(2)
    Trace([1.0]).check_ranks(9)
    with pytest.raises(ConfigurationError, match="no times of rank 2, only of ranks 0 and 1"):
        trace.check_ranks(3)
