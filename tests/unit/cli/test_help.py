"""Helps are whole at 80 columns, and in a user's words; earlier names of options still count."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from quorate.cli.verbs import VERBS, status_of


def helped(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert status_of([*words, "--help"]) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def _at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_no_line_of_the_list_of_verbs_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    rows = helped(capsys).partition("Commands:\n")[2].splitlines()
    assert [row.split()[0] for row in rows] == list(VERBS)
    assert [row for row in rows if not row.endswith(".") or row.endswith("...")] == []


@pytest.mark.parametrize("verb", VERBS)
def test_the_words_for_values_are_not_types_of_python(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = helped(capsys, verb)
    assert not re.search(r"<\w|\{\w+\}|\[\[", shown)
    assert all(len(line) <= 80 for line in shown.splitlines())


@pytest.mark.parametrize(("text", "seconds"), [("1.5", 1.5), ("90s", 90.0), ("30min", 1800.0)])
def test_seconds_are_a_number_or_a_duration(
    text: str, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    assert status_of(["run", "--seconds", text, "--dry-run", "--json", "train.py"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds_limit"] == seconds


def test_a_time_out_has_a_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    assert status_of(["compare", "-n", "2", "--timeout", "20", "train.py"]) == 2
    assert capsys.readouterr().err == 'quorate: "20" has no unit: 20ms or 20s?\n'
