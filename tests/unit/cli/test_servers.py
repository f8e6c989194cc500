"""`--servers` of `quorate run`: what is planned, and what is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorate.cli.main import main


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()


def ran(*words: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(["run", *words])
    return ended.value.code


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert ran("--dry-run", "--json", *words) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_what_is_chosen_is_kept_and_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "-n", "4", "--servers", "2", "--strategy", "parameter-server:mode=async", "train.py")
    assert (found["workers"], found["servers"]) == (4, 2)
    assert found["settings"] == {"mode": "async", "servers": "own"}
    folder = Path("runs", "first")
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(found))
    again = planned(capsys, "--resume", "first")
    assert (again["servers"], again["settings"]) == (2, found["settings"])
    assert "servers" not in planned(capsys, "-n", "4", "train.py")


def test_it_is_said_before_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert ran("--virtual", "3", "--servers", "1", "--dry-run", "train.py") == 0
    assert "would start 3 virtual workers and 1 server of train.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--servers", "-1"], "--servers is -1; it must be a number of servers from 1 to 64"),
        (["--servers", "65"], "--servers is 65; it must be a number of servers from 1 to 64"),
        (["--servers", "1", "--strategy", "quorum"], "quorum has no servers; --servers needs parameter-server"),
        (["--servers", "1", "--strategy", "easgd"], "easgd has its servers on workers, as its setting servers says; "),
        (["--servers", "1", "--strategy", "ddp"], "ddp has no servers; --servers needs parameter-server"),
        (["--servers", "1", "--strategy", "paramete"], 'unknown strategy "paramete"'),
        (["--servers", "1", "--set", "servers=1"], "--servers 1 starts separate servers; leave out"),
        (["--servers", "1", "--max-joins", "1"], "--max-joins cannot be given with --servers"),
        (["--servers", "1", "--restart", "1", "--chaos", "1"], "--chaos and --restart cannot be given with --servers"),
        (["--servers", "1", "--hosts", "a:2"], "--servers cannot be given with --hosts"),
    ],
)
def test_wrong_input_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = [] if "--hosts" in words else ["-n", "2"]
    assert ran(*hosts, *words, "train.py") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"quorate: {sentence}") and said.count("\n") == 1
