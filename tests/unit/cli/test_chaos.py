"""`--failures` and `--chaos` of `quorate run`: what is read, and what is refused in one sentence."""

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
        main(["run", *words, "train.py"])
    return ended.value.code


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert ran(*words, "--dry-run", "--json") == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_what_is_chosen_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "-n", "4", "--chaos", "7", "--failures", "mtbf=9s,repair=2s")
    assert (found["chaos"], found["failures"], found["restart"]) == (7, "mtbf=9s,repair=2s", 64)
    found = planned(capsys, "-n", "4", "--chaos", "7", "--restart", "0")
    assert str(found["failures"]).startswith("mtbf=60s") and found["restart"] == 0
    found = planned(capsys, "-n", "4")
    assert (found["chaos"], found["failures"], found["restart"]) == (None, None, 0)


def test_it_is_said_before_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert ran("-n", "2", "--chaos", "1", "--failures", "mtbf=9s", "--dry-run") == 0
    assert "chaos of seed 1: mtbf=9s, up to 64 more workers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-n", "2", "--failures", "mtbf=9s"], "--failures can be given with --chaos SEED only"),
        (["--virtual", "2", "--chaos", "1"], "--chaos kills processes (-n); it cannot be given with --virtual"),
        (["-n", "2", "--chaos", "-1"], "--chaos -1: a seed is a whole number from 0 to"),
        (["-n", "2", "--chaos", "1", "--failures", "often"], '"often" in "often" is not a failure; write mtbf='),
        (
            ["-n", "2", "--chaos", "1", "--strategy", "ddp"],
            "the baseline ddp cannot continue after the death of a",
        ),
        (
            ["-n", "2", "--chaos", "1", "--restart", "65"],
            "--restart is 65; it must be a number of workers from 0 to 64",
        ),
    ],
)
def test_wrong_input_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"quorate: {sentence}") and said.count("\n") == 1
