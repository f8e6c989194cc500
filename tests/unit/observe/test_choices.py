"""What is written and said of settings that a training has chosen for itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quorate.observe.choices import ChoiceWatch


def watch(written: list[Any] | None, *, is_first: bool = True) -> ChoiceWatch:
    recorder = None if written is None else SimpleNamespace(write=lambda row: written.append(row.as_json()))
    clock = SimpleNamespace(now=lambda: 2.5)
    timer: Any = SimpleNamespace(rounds=7, steps=8, name="1", recorder=recorder, clock=clock)
    losses: Any = SimpleNamespace(is_first=is_first)
    return ChoiceWatch(timer, losses)


def test_a_choice_is_a_row_and_a_line_of_the_first_worker(capsys: pytest.CaptureFixture[str]) -> None:
    written: list[Any] = []
    watch(written).codecs({"0": "top-k", "1": "none", "2": "top-k"}, "a step is twice as fast")
    value = "top-k in parts 0 2, none in part 1"
    assert capsys.readouterr().err == f"quorate: from update 8 on, compress is {value}: a step is twice as fast\n"
    of_row = {"step": 9, "time": 2.5, "optimizer": "1", "setting": "compress", "value": value}
    assert written == [{"kind": "choice", **of_row, "why": "a step is twice as fast"}]


def test_others_say_nothing_and_without_records_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    written: list[Any] = []
    watch(written, is_first=False).strategy("local-sgd", "the network is slow", acts=True)
    assert not written and not capsys.readouterr().err
    watch(None).strategy("quorum:wait_for=2", "one is slow", acts=False)
    assert "proposed strategy is quorum:wait_for=2: one is slow" in capsys.readouterr().err
