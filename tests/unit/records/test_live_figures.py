"""Figures of a run under way, out of the rows of one rank: as the report has them in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quorate.records.live_figures import SHARES, LiveFigures, merged_in
from quorate.report.figures.goodput import goodput_of
from quorate.report.reading.run import read_run
from tests.unit.report.test_goodput import GONE, every_second, made, start


def taken(number: int, *, age: int = 0, fragments: int = 2, **more: Any) -> dict[str, Any]:
    """Both have handed in a fragment of two, rank 1 with three times the weight."""
    told = {
        str(rank): [{"time": number, "weights": [1.0 + 2 * rank] * fragments, "speed": 1.0 / (1 + 2 * rank)}]
        for rank in (0, 1)
    }
    contributors = {"0": [[0, 1]], "1": [[age, 1]]}
    row = {"kind": "round", "number": number, "time": 2.0 * number, "weight": 8.0, "live": 2, "told": told}
    return {**row, "contributors": contributors, **more}


def figures(*rows: dict[str, Any], apart: bool = False, **settings: Any) -> LiveFigures:
    found = LiveFigures()
    for row in (*start(0, settings, apart=apart), *rows):
        found.row(row)
    return found


def test_a_merge_says_who_is_in_it_and_how_old_that_is() -> None:
    found = figures(*every_second(4), taken(3, age=5, window=0.25), apart=True, fragments=2)
    assert found.newest == {
        "window": 0.25,
        "merged": 2.0,
        "merge age": 0.75 * 2,
        "share of rank 0": 0.25,
        "share of rank 1": 0.75,
    }
    alone = taken(4)
    found.row({**alone, "told": {"1": alone["told"]["1"]}})
    assert (found.newest["merged"], found.newest["share of rank 0"], found.newest["merge age"]) == (1.0, 0.0, 0.0)


def test_of_many_the_first_ones_are_named() -> None:
    found = figures({**start(0, {}, apart=True)[0], "size": 100}, taken(1))
    assert sum(name.startswith("share of rank") for name in found.newest) == SHARES


def test_an_outer_step_says_rho_and_gain() -> None:
    found = figures({"kind": "outer", "rho": None, "gain": 1.5}, {"kind": "outer", "rho": 0.25, "gain": 2.5})
    assert found.newest == {"rho": 0.25, "gain": 2.5}


@pytest.mark.parametrize("dies", [True, False])
def test_without_rounds_every_worker_alive_is_as_far_as_this_one(tmp_path: Path, dies: bool) -> None:
    rows = [*every_second(6), *([GONE] if dies else []), *every_second(10)[6:]]
    found = figures(*rows)
    assert found.has_failed is dies and found.goodput == (0.8 if dies else 1.0)
    whole = goodput_of(read_run(made(tmp_path, rows, every_second(6 if dies else 10))))
    assert whole is not None and whole.share == found.goodput


def test_of_rounds_what_they_took_in_is_useful(tmp_path: Path) -> None:
    """A round of one fragment of two counts for half, and the last one is of both: 4 + 4 + 8 of 16 steps."""
    rows = [*every_second(8), taken(1), taken(2), taken(4, settles=True)]
    equal = [row if row["kind"] != "round" else {**row, "told": None} for row in rows]
    found = figures(*equal, apart=True, fragments=2)
    whole = goodput_of(read_run(made(tmp_path, equal, every_second(8), apart=True, fragments=2)))
    assert whole is not None and found.goodput == whole.share == 1.0
    slow = figures(*rows, apart=True, fragments=2)  # as told, a step takes 1 second here and 3 there
    assert slow.goodput == 2.0


def test_gradients_in_rounds_count_themselves() -> None:
    rounds = [{**taken(number), "told": {"0": [[0.1, None]]}} for number in (1, 2, 4)]
    found = figures(*every_second(8), *rounds)
    assert found.goodput == 6 / 16 and "merged" not in found.newest


@pytest.mark.parametrize(
    "row", [{}, {"kind": "round"}, {"kind": "step", "optimizer": "1"}, {"kind": ["x"]}, taken(1) | {"told": [1]}]
)
def test_damaged_rows_are_left_out(row: dict[str, Any]) -> None:
    found = LiveFigures()
    assert found.row(row) == {} and found.goodput is None


def test_a_round_in_which_nobody_had_made_a_step_merges_nothing() -> None:
    assert merged_in(1, {0: [{"weights": [0.0]}]}, {0: [(0, 1)]}, settles=False) is None


def test_the_noise_scale_of_the_first_optimizer() -> None:
    row = {"kind": "noise", "optimizer": "1", "signal": 2.0, "noise": 8.0}
    assert figures(row).newest == {"noise scale": 4.0}
    assert figures(row, {**row, "optimizer": "2", "noise": 9.0}, {**row, "signal": -1.0}).newest == {"noise scale": 4.0}
