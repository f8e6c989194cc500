"""Goodput: what counts as useful, by kind of strategy, and what would have been possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quorate.report.closing import closing_line
from quorate.report.figures.goodput import goodput_of
from quorate.report.page import page
from quorate.report.reading.run import read_run
from quorate.report.summary import summarize

GONE = {
    "kind": "gone",
    "time": 9.0,
    "rank": 1,
    "host": "h",
    "reason": "was killed",
    "round": 3,
    "generation": 1,
    "left": 1,
}


def start(rank: int, settings: dict[str, Any], *, apart: bool) -> list[dict[str, Any]]:
    return [
        {"kind": "start", "rank": rank, "size": 2, "host": "h", "pid": 1, "clock": "monotonic", "now": 0.0,
         "wall": 1e9, "device": "cpu", "seed": 0},
        {"kind": "distribute", "optimizer": "1", "algorithm": "SGD", "strategy": "s", "settings": settings,
         "replicas_differ": apart, "parameters": 1, "learning_rates": [0.1]},
    ]  # fmt: skip


def steps(*times: tuple[float, float]) -> list[dict[str, Any]]:
    plain = dict.fromkeys(("data", "delay", "compute", "encode", "wait", "decode", "update"), 0.0)
    more = {
        "loss": None,
        "examples": 1,
        "tokens": None,
        "bytes_out": 0,
        "bytes_in": 0,
        "contributors": 2,
        "staleness": 0,
    }
    return [
        {"kind": "step", "step": number, "optimizer": "1", "round": number, "begin": begin, "arrive": end, "end": end,
         **plain, **more}
        for number, (begin, end) in enumerate(times, 1)
    ]  # fmt: skip


def every_second(count: int) -> list[dict[str, Any]]:
    return steps(*((float(second), second + 1.0) for second in range(count)))


def made(
    folder: Path, own: list[dict[str, Any]], of_the_dead: list[dict[str, Any]], *, apart: bool = False, **settings: Any
) -> Path:
    folder.mkdir(exist_ok=True)
    for rank, rows in enumerate((own, of_the_dead)):
        lines = [*start(rank, settings, apart=apart), *rows]
        (folder / f"rank-{rank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    (folder / "run.json").write_text(json.dumps({"workers": 2}))
    return folder


def test_where_all_are_needed_every_step_that_was_made_is_useful(tmp_path: Path) -> None:
    goodput = goodput_of(read_run(made(tmp_path, [*every_second(10), GONE], every_second(6))))
    assert goodput is not None
    assert (goodput.useful, goodput.made, goodput.possible, goodput.share, goodput.lost) == (16, 16, 20, 0.8, 0)


def test_under_local_steps_those_since_the_last_mean_are_lost(tmp_path: Path) -> None:
    means = [
        {"kind": "distance", "step": at, "time": at, "optimizer": "1", "distance": 1.0, "norm": 1.0} for at in (1, 3)
    ]
    folder = made(tmp_path, [*every_second(10), GONE], [*every_second(7), *means], apart=True, sync_every=2)
    goodput = goodput_of(read_run(folder))
    assert goodput is not None and (goodput.useful, goodput.lost) == (14, 3)
    folder = made(tmp_path, [*every_second(10), GONE], every_second(7), apart=True, sync_every=2)
    goodput = goodput_of(read_run(folder))
    assert goodput is not None and (goodput.useful, goodput.lost) == (10, 7)


@pytest.mark.parametrize(("apart", "useful"), [(False, 7), (True, 14)])
def test_of_rounds_what_they_took_in_is_useful(tmp_path: Path, apart: bool, useful: int) -> None:
    """Gradients count themselves; of local steps the weight says how many they were."""
    taken = [{"0": [[0, 2]], "1": [[0, 1]]}, {"0": [[0, 3]], "1": [[1, 1]]}]
    rounds = [
        {
            "kind": "round",
            "number": number,
            "time": 3.5 * number,
            "weight": 7.0,
            "live": 2,
            "contributors": contributors,
        }
        for number, contributors in enumerate(taken, 1)
    ]
    settings = {"sync_every": 3} if apart else {}
    folder = made(tmp_path, [*every_second(10), *rounds, GONE], every_second(6), apart=apart, **settings)
    goodput = goodput_of(read_run(folder))
    assert goodput is not None and (goodput.useful, goodput.made) == (useful, 16)


def test_a_round_of_one_fragment_of_several_counts_for_its_share(tmp_path: Path) -> None:
    """Each of two fragments is taken by itself, with all steps since it was taken last; the last round is of both."""
    single, both = {"0": [[0, 1]], "1": [[0, 1]]}, {"0": [[0, 1], [0, 1]], "1": [[0, 1], [0, 1]]}
    rounds = [
        {
            "kind": "round",
            "number": number,
            "time": 2.0 * number,
            "weight": weight,
            "live": 2,
            "contributors": taken,
            "settles": taken is both,
        }
        for number, (weight, taken) in enumerate([(4.0, single), (8.0, single), (8.0, single), (3.0, both)], 1)
    ]
    folder = made(tmp_path, [*every_second(7), *rounds], every_second(6), apart=True, sync_every=4, fragments=2)
    goodput = goodput_of(read_run(folder))
    assert goodput is not None and (goodput.useful, goodput.made) == (13, 13)


def test_an_undisturbed_step_is_the_median_unless_there_is_a_pace_or_it_is_told(tmp_path: Path) -> None:
    slow = steps((0, 1), (1, 5), (5, 9), (9, 13))
    run = read_run(made(tmp_path, slow, slow))
    goodput = goodput_of(run)
    assert goodput is not None and goodput.step_seconds == 4.0
    shorter = goodput_of(run, 0.5)
    assert shorter is not None and shorter.possible == 52.0
    for pace, seconds in (("900ms", 0.9), ("900ms+1ms/token", 4.0), ("100ms", 4.0), ("trace:gone", 4.0), (3, 4.0)):
        (tmp_path / "run.json").write_text(json.dumps({"workers": 2, "pace": pace}))
        goodput = goodput_of(read_run(tmp_path))
        assert goodput is not None and goodput.step_seconds == seconds, pace


def test_without_steps_there_is_none(tmp_path: Path) -> None:
    assert goodput_of(read_run(made(tmp_path, [], []))) is None


def test_the_last_line_says_it_where_workers_failed(tmp_path: Path) -> None:
    said = closing_line(made(tmp_path, [*every_second(10), GONE], every_second(6)))
    assert said is not None and "; goodput 80%; " in said
    means = [{"kind": "distance", "step": 3, "time": 4, "optimizer": "1", "distance": 1.0, "norm": 1.0}]
    rows = [*every_second(7), *means]
    said = closing_line(made(tmp_path, [*every_second(10), GONE], rows, apart=True, sync_every=2))
    assert said is not None and "; goodput 70% (3 of 17 steps were lost); " in said
    said = closing_line(made(tmp_path, every_second(10), every_second(6)))
    assert said is not None and "goodput" not in said
    (tmp_path / "chaos.jsonl").write_text('{"kind": "begin"}\n')
    said = closing_line(tmp_path)
    assert said is not None and "goodput 80%" in said


def test_the_page_says_it_where_workers_failed(tmp_path: Path) -> None:
    folder = made(tmp_path, [*every_second(10), GONE], every_second(6))
    summary = summarize(folder)
    (arm,) = summary.arms
    assert arm.goodput is not None
    assert arm.goodput.share.values == (0.8,)
    assert (arm.goodput.useful.mean, arm.goodput.lost.mean, arm.goodput.possible.mean) == (16.0, 0.0, 20.0)
    shown = page(summary)
    assert "Goodput" in shown and ">80%<" in shown
