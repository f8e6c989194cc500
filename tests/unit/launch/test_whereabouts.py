"""The report made of the workers' answers: which one differs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorate.launch.run.requests import UnderWay, Whereabouts
from quorate.launch.worker.stack_report import compose, odd_one_out


def waits(operation: str, since: float = 0.0) -> Whereabouts:
    return Whereabouts(
        stack=["train.py:7 in main", "wire.py:9 in wait"],
        script="train.py:7 in main",
        waits=UnderWay(operation, [0], since),
        now=3.5,
        recent=["main #1 barrier", f"main #2 {operation}"],
        steps=[12],
        threads={},
    )


def computes(place: str) -> Whereabouts:
    return replace(waits(""), waits=None, script=place, recent=[], steps=[])


@pytest.mark.parametrize(
    ("answers", "silent", "sentence"),
    [
        (
            {0: waits("all_reduce"), 1: computes("data.py:3 in load"), 2: waits("all_reduce")},
            {},
            "rank 1 computes in data.py:3 in load, while ranks 0 and 2 wait",
        ),
        (
            {0: waits("all_reduce"), 1: waits("barrier"), 2: waits("all_reduce")},
            {},
            "rank 1 waits in barrier, and the others in all_reduce",
        ),
        (
            {0: waits("all_reduce"), 1: waits("barrier")},
            {},
            "workers wait in different places: rank 0 in all_reduce; rank 1 in barrier",
        ),
        ({0: waits("barrier"), 1: waits("barrier")}, {}, "all wait in barrier"),
        ({0: computes(""), 1: computes("")}, {}, "nobody waits"),
        (
            {0: waits("barrier"), 1: None, 2: None},
            {1: "does not answer: its process is stopped (as by SIGSTOP)", 2: "does not answer"},
            "rank 1 does not answer: its process is stopped (as by SIGSTOP), and so does rank 2",
        ),
    ],
)
def test_the_odd_one_out(answers: dict[int, Whereabouts | None], silent: dict[int, str], sentence: str) -> None:
    assert odd_one_out(answers, silent) == sentence


def test_a_report_says_of_everyone_where_and_since_when() -> None:
    said = compose({0: waits("barrier", since=1.0), 1: computes("a.py:1 in f"), 2: None}, {2: "has not joined"}, "why")
    assert said.splitlines() == [
        "quorate: why: rank 2 has not joined",
        "  rank 0 has waited 2.5 s in barrier, after step 12",
        "    | train.py:7 in main",
        "    | wire.py:9 in wait",
        "    last collectives: main #1 barrier; main #2 barrier",
        "  rank 1 computes in a.py:1 in f",
        "    | train.py:7 in main",
        "    | wire.py:9 in wait",
        "  rank 2 has not joined",
    ]
