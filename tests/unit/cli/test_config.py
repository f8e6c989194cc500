"""Options from a file: the same as typed, checked as strictly, and given back as they were."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.verbs import status


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    return tmp_path


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What `--dry-run --json` says, without the name that is drawn."""
    capsys.readouterr()
    assert status(words[0], "--dry-run", "--json", *words[1:]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {key: value for key, value in told.items() if key not in ("records", "runs")}


RUN = """
script = "train.py"
arguments = ["--lr", "3"]
workers = 3
strategy = "quorum"
min-step-time = "2ms"
[set]
wait-for = "majority"
max_staleness = 4
"""
TYPED = (
    "-n",
    "3",
    "--strategy",
    "quorum",
    "--min-step-time",
    "2ms",
    "--set",
    "wait_for=majority",
    "--set",
    "max_staleness=4",
)


def test_settings_may_stand_with_the_strategy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "-n",
        "3",
        "--min-step-time",
        "2ms",
        "--strategy",
        "quorum:wait_for=all,max_staleness=4",
        "--set",
        "wait_for=majority",
    )
    typed = plan(capsys, "run", *TYPED, "train.py", "--lr", "3")
    assert plan(capsys, "run", *words, "train.py", "--lr", "3") == typed


def test_a_file_is_as_good_as_typing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run.toml").write_text(RUN)
    assert plan(capsys, "run", "--config", "run.toml") == plan(capsys, "run", *TYPED, "train.py", "--lr", "3")


@pytest.mark.parametrize(
    ("typed", "changed"),
    [
        (["-n", "2"], {"workers": 2}),
        (["--set", "wait_for=1"], {"settings": {"wait_for": 1, "max_staleness": 4}}),
        (["--strategy", "all-reduce"], {"strategy": "all-reduce", "settings": {}}),
        (["--strategy", "quorum"], {}),
        (["--min-step-time", "3ms"], {"pace": "3ms"}),
        (["train.py", "-n", "5"], {"arguments": ["-n", "5"]}),
    ],
)
def test_what_is_typed_goes_first(
    folder: Path, capsys: pytest.CaptureFixture[str], typed: list[str], changed: dict[str, object]
) -> None:
    (folder / "run.toml").write_text(RUN)
    before = plan(capsys, "run", "--config", "run.toml")
    assert plan(capsys, "run", "--config", "run.toml", *typed) == {**before, **changed}


def test_another_world_takes_nothing_of_the_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run.toml").write_text('script = "train.py"\nvirtual = 4\nlatency = "5us"\n')
    assert plan(capsys, "run", "--config", "run.toml", "-n", "2")["world"] == "real"
    (folder / "run.toml").write_text(RUN)
    told = plan(capsys, "run", "--config", "run.toml", "--virtual", "2")
    assert (told["world"], told["workers"]) == ("virtual", 2)


@pytest.mark.parametrize(
    "words",
    [
        ("run", "-n", "2", "--set", "a b=x\ny", "--set", 'c="3"', "--set", "d=[1, 2.5]", "--set", "e=true", "train.py"),
        ("run", "--virtual", "3", "--seed", "4", "--seconds", "2.5", "--name", "x", "train.py", "-n", "é\x7f\\"),
        ("run", "-m", "json", "--name", "x"),
        ("compare", "--virtual", "2", "--seeds", "7,", "--tune-lr", "--strategy", "quorum:wait_for=1,late=drop",
         "--workload-set", "features=3", "least-squares"),
        ("compare", "-n", "2", "--metric", "height", "--lower", "--target", "1", "train.py", "--lr"),
        ("compare", "-n", "2", "--target", "1", "--stop-at-target", "--baseline", "ddp", "digits"),
    ],
)  # fmt: skip
def test_what_is_shown_does_the_same_again(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert status(words[0], "--print-config", *words[1:]) == 0
    shown = capsys.readouterr().out
    assert tomllib.loads(shown)
    (folder / "shown.toml").write_text(shown, encoding="utf-8")
    assert plan(capsys, words[0], "--config", "shown.toml") == plan(capsys, *words)
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "worker = 3",
            'unknown key in x.toml "worker"; did you mean "workers"? Known: arguments, as, attack, bandwidth, ',
        ),
        ("dry-run = true", 'unknown key in x.toml "dry-run"'),
        ('workers = "3"', "workers in x.toml is '3'; it should be a whole number"),
        ("workers = true", "workers in x.toml is True; it should be a whole number"),
        ('restart = "1"', "restart in x.toml is '1'; it should be a whole number"),
        ("max-joins = 1.5", "max-joins in x.toml is 1.5; it should be a whole number"),
        ("module = 1", "module in x.toml is 1; it should be true or false"),
        ('seconds = "soon"', '"soon" is not a number of seconds, or a duration such as 90s, 30min or 6h'),
        ("arguments = [1]", "arguments in x.toml is [1]; it should be a list of texts"),
        ("min-step-time = true", "min-step-time in x.toml is True; it should be a text"),
        ("set = 1", "set in x.toml is 1; it should be a table of plain values"),
        ("[set]\na = {b = 1}", "set in x.toml is {'a': {'b': 1}}; it should be a table of plain values"),
        ("workers = 0", "-n 0: a run needs at least one worker"),
        ("strategy = 'quorom'", 'unknown strategy "quorom"; did you mean "quorum"?'),
        ("workers = ", '--config "x.toml" is not valid TOML: Invalid value'),
        ("a = " + "[" * 5000, '--config "x.toml" is not valid TOML: '),
    ],
)
def test_a_wrong_file_is_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    (folder / "x.toml").write_text(text)
    assert status("run", "--config", "x.toml", "train.py") == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith(f"quorate: {sentence}") and told.err.count("\n") == 1
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(("name", "why"), [("nowhere", "No such file"), (".", "Is a directory"), ("/dev/zero", "is l")])
def test_a_file_that_cannot_be_read(folder: Path, capsys: pytest.CaptureFixture[str], name: str, why: str) -> None:
    assert status("run", "--config", name, "train.py") == 2
    assert why in capsys.readouterr().err


def test_a_comparison_that_goes_on_has_its_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("compare", "--continue", "x", "--print-config") == 2
    assert "it cannot be combined with --continue" in capsys.readouterr().err
