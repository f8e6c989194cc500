"""`quorate trace` as it is typed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from quorate.cli.main import main
from tests.support.made_records import make_comparison, make_run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_run(Path("runs/first"), steps=3)
    return tmp_path


def status_of(*arguments: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(["trace", *arguments])
    return ended.value.code


def test_the_timeline_is_written_into_the_runs_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("first") == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "runs/first/trace.json.gz: 4 ranks, 12 steps",
        "open it at https://ui.perfetto.dev or chrome://tracing",
    ]
    assert json.loads(gzip.decompress(Path("runs/first/trace.json.gz").read_bytes()))["otherData"]["run"] == "first"


def test_one_rank_is_no_plural(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (1, 2, 3):
        Path(f"runs/first/rank-{rank}.jsonl").unlink()
    assert status_of("first") == 0
    assert ": 1 rank, 3 steps" in capsys.readouterr().out


def test_it_can_be_written_elsewhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("runs/first", "--output", "here.json", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["path"], told["ranks"], told["steps"]) == ("here.json", 4, 12)
    assert told["events"] == len(json.loads(Path("here.json").read_text())["traceEvents"])
    assert not Path("runs/first/trace.json.gz").exists()


def test_wrong_input_is_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("frist") == 2
    assert capsys.readouterr().err == (
        'quorate: there is no run "frist", as a folder or in runs; did you mean "first"? The newest: first.\n'
    )
    make_comparison(Path("runs/compared"), seeds=(0,), steps=2, fails=False)
    assert status_of("compared") == 2
    assert "name one of its runs: runs/compared/all-reduce/seed-0, " in capsys.readouterr().err
    assert status_of("first", "--output", "no/such/folder.json") == 2
    assert "there is no folder no/such" in capsys.readouterr().err
