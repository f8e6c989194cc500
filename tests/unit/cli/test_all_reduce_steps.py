"""`quorate explain ring -n 4`: an all-reduce, step by step, and the list of reducers."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from quorate.cli.pictures import MOST_DRAWN, drawn_steps, lines_of_steps
from quorate.cli.verbs import app
from quorate.core.errors import ConfigurationError
from quorate.means import OF_VECTORS


def said(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def text(name: str, workers: int, width: int = 100) -> str:
    drawn = drawn_steps(name, workers)
    assert drawn is not None
    return "\n".join(lines_of_steps(drawn, width))


def test_a_ring_is_shown_step_by_step() -> None:
    shown = text("ring", 3)
    assert "ring among 3 workers: the vector travels in 3 pieces\n" in shown
    assert (
        "  worker  0     1     2\n"
        "  step  1 +0>1  +1>2  +2>0\n"
        "  step  2 +2>1  +0>2  +1>0\n"
        "  step  3 =1>1  =2>2  =0>0\n"
        "  step  4 =0>1  =1>2  =2>0\n"
    ) in shown
    assert "messages one after the other  4\n" in shown
    assert "bytes out of one worker       1.333 n at most" in shown
    assert "4 alpha + 1.333 n beta + 0.6667 n gamma" in shown
    assert "1 kB 0.201 ms, 1 MB 1.27 ms, 100 MB 107 ms" in shown


def test_pieces_that_travel_together_and_workers_that_send_nothing() -> None:
    assert "  step  1 .       +0-3>0  .       .       .\n  step  2 +2-3>3" in text("halving-doubling", 5)


def test_columns_that_do_not_fit_come_below() -> None:
    shown = text("ring", 16, width=80)
    assert shown.count("  worker  ") == 2
    assert max(len(line) for line in shown.splitlines() if line.startswith(("  worker", "  step"))) <= 80


def test_one_worker_sends_nothing_and_many_are_not_drawn() -> None:
    assert "step" not in text("tree", 1)
    assert "step" not in text("tree", MOST_DRAWN + 1)
    assert "seconds, at most              14 alpha + 14 n beta + 7 n gamma" in text("tree", MOST_DRAWN + 1)


def test_a_name_of_a_topology_and_of_a_reducer_has_two_cards_and_two_pictures() -> None:
    found = said("explain", "ring", "-n", "4").output
    order = ["ring (topology)", "ring among 4 workers: edges", "ring (reducer)", "ring among 4 workers: the vector"]
    assert sorted(order, key=found.index) == order
    topology, reducer = json.loads(said("explain", "ring", "-n", "4", "--json").output)
    assert topology["graph"]["workers"] == reducer["steps"]["workers"] == 4
    assert reducer["steps"]["steps"][0][1] == {"source": 1, "to": 2, "pieces": [1], "adds": True}
    assert reducer["steps"]["cost"] == {"messages": 6, "moved": 1.5, "added": 0.75, "sent": 1.5}
    assert "steps" not in topology and "graph" not in reducer


def test_reducers_are_listed_and_say_everything_about_themselves() -> None:
    names = json.loads(said("list", "reducers", "--json").output)["reducers"]
    assert {"dense", "ring", "recursive-doubling", "halving-doubling", "tree"} <= names.keys()
    for name in OF_VECTORS:
        (card,) = [one for one in json.loads(said("explain", name, "--json").output) if one["kind"] == "reducer"]
        wanted = ["Idea", "Cost", "When it loses", *(["Paper"] if name != "dense" else [])]
        assert list(card["sections"]) == wanted


def test_what_has_no_steps_is_not_drawn() -> None:
    found = said("explain", "gather", "-n", "4")
    assert isinstance(found.exception, ConfigurationError)
    assert '"gather" is a reducer, which has no picture' in str(found.exception)


@pytest.mark.parametrize("workers", [0, 1025])
def test_numbers_of_workers_that_cannot_be(workers: int) -> None:
    with pytest.raises(ConfigurationError, match=f"-n is {workers}"):
        drawn_steps("tree", workers)
