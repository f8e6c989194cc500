"""Who tells the records that a worker has joined: the first that is left, once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quorate.observe.losses import Losses


def written(rank: int, dead: frozenset[int], *joined: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return the rows of worker `rank` of 2 as it applies rounds with these newcomers."""
    rows: list[dict[str, Any]] = []
    recorder = SimpleNamespace(write=lambda row: rows.append(row.as_json()))
    living = [other for other in (0, 1) if other not in dead]
    wire = SimpleNamespace(rank=rank, size=2, dead=dead, alive=living)
    timer = SimpleNamespace(name="1", recorder=recorder, clock=SimpleNamespace(now=lambda: 7.0))
    losses = Losses(wire, timer, lambda: 0)  # type: ignore[arg-type]
    for number, those in enumerate(joined, 5):
        losses.joined(those, number)
    return rows


@pytest.mark.parametrize(("rank", "dead"), [(0, frozenset[int]()), (0, frozenset({1})), (1, frozenset({0}))])
def test_the_first_that_is_left_tells_once(rank: int, dead: frozenset[int]) -> None:
    assert written(rank, dead, (), (2,), (2,), (2, 3)) == [
        {"kind": "joined", "time": 7.0, "rank": 2, "round": 6, "live": 3 - len(dead)},
        {"kind": "joined", "time": 7.0, "rank": 3, "round": 8, "live": 4 - len(dead)},
    ]


def test_the_others_say_nothing() -> None:
    assert written(1, frozenset(), (2,)) == []
