"""What `quorate bench` asks of its workers, and its table and picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from quorate.cli import bench
from quorate.cli.main import main

ABOUT = {"network": "shared memory", "backend": "gloo", "device": "cpu"}


def row(operation: str, way: str, size: int, error: float = 0.0) -> dict[str, Any]:
    return {
        "operation": operation, "way": way, "size": size, "elements": size // 4, "dtype": "float32",
        "seconds": 0.0123 if way == "gloo" else 0.0012, "algorithm_bandwidth": 43.6e9, "bus_bandwidth": 76.4e9,
        "error": error,
    }  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[str], dict[str, Any]]]:
    """The workers and the questions of runs that answer at once."""
    seen: list[tuple[Sequence[str], dict[str, Any]]] = []

    def objects_of(*words: str, **others: Any) -> list[dict[str, Any]]:
        seen[-1] = seen[-1][0], json.loads(words[-1])
        question = seen[-1][1]
        ways = [(name, size) for name in question["operations"] for size in question["sizes"]]
        return [dict(ABOUT), *(row(name, way, size) for name, size in ways for way in ("quorate", "gloo"))]

    def in_run(workers: Sequence[str]) -> Any:
        seen.append((workers, {}))
        return nullcontext(["run"])

    monkeypatch.setattr(bench, "in_run", in_run)
    monkeypatch.setattr(bench, "objects_of", objects_of)
    return seen


def status(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *words])
    code: Any = ended.value.code
    return int(code or 0)


def test_all_operations_over_powers_of_two(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert status("-n", "4", "--to", "1GiB") == 0
    workers, question = asked[0]
    assert (workers, question["operations"]) == (["-n", "4"], list(bench.OPERATIONS))
    assert question["sizes"] == [1 << power for power in range(10, 31)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "4 workers on one host, cpu; Quorate uses shared memory, and torch uses gloo.",
        "Times in µs, bandwidths in GB/s.",
    ]
    assert lines[4].split() == ["size", "(B)", "quorate", "algbw", "busbw", "gloo", "algbw", "busbw"]
    assert lines[6].split() == ["1,024", "1,200.0", "43.600", "76.400", "12,300.0", "43.600", "76.400"]
    assert max(map(len, lines)) <= 80


def test_hosts_and_json(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert status("--hosts", "a:2,b", "--to", "2KiB", "--json", "round", "round") == 0
    assert asked == [(["--hosts", "a:2,b:1"], {"operations": ["round"], "sizes": [1024, 2048], "seconds": 0.1})]
    answer = json.loads(capsys.readouterr().out)
    assert (answer["workers"], answer["hosts"], len(answer["rows"])) == (3, ["a", "b"], 4)


def test_the_picture_is_svg(asked: list[Any], tmp_path: Path) -> None:
    assert status("--to", "4KiB", "--picture", str(tmp_path / "rates.svg")) == 0
    text = (tmp_path / "rates.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert all(f"{name}: bus bandwidth" in text for name in bench.OPERATIONS) and "4 KiB" in text


def test_wrong_numbers_end_it_with_one(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "objects_of", lambda *words, **others: [dict(ABOUT), row("all-reduce", "gloo", 8, 1.0)])
    assert status() == 1
    assert "wrong numbers from all-reduce: do not train on this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["all-sum"], "there is no operation 'all-sum'; those are all-reduce, reduce-scatter"),
        (["-n", "1"], "one worker has nobody to exchange with; give -n 2 or more"),
        (["-n", "2", "--hosts", "a,b"], "leave out -n"),
        (["--from", "2MiB", "--to", "1MiB"], "--from is at most --to"),
        (["--from", "24"], "24"),
        (["--repeat-for", "0ms"], "--repeat-for takes a time above 0"),
        (["--picture", "rates.png"], "give a file name that ends in .svg"),
    ],
)
def test_wrong_options_are_told_before_anything_starts(
    words: list[str], sentence: str, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(*words) == 2
    assert asked == [] and sentence in capsys.readouterr().err
