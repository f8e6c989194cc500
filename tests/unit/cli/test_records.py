"""`quorate simulate --records`."""

from __future__ import annotations

import json

import pytest

from quorate.cli.verbs import status_of


def test_the_table_says_what_is_near_and_what_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["simulate", "--records"]) == 0
    told = capsys.readouterr().out
    assert "Yamazaki" in told and "2,176 V100" in told and "34,816 to 69,632" in told
    assert "not within a factor of 2.00: none\npredicted in another order than published: none\nfitted: " in told


def test_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["simulate", "--records", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["records"]) == 11 and told["out_of_order"] == []
    assert told["records"][0]["published_seconds"] == 104400


def test_other_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["simulate", "--records", "-n", "8", "--name", "x"]) == 2
    assert (
        "quorate: --records predicts the published trainings with their own settings; leave out -n and --name"
        in capsys.readouterr().err
    )
