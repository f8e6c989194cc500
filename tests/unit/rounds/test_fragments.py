"""What workers hand in to rounds of fragments: every step is taken once, whatever becomes of rounds."""

from __future__ import annotations

import random

import pytest
import torch

from quorate.buckets.flat import layout_of
from quorate.core.vectors import Flat
from quorate.rounds.buffer import Snapshot
from quorate.rounds.fragments import Fragments, PendingFragments
from quorate.rounds.terms import Agreed

COUNT = 3
LAYOUTS = tuple(layout_of([(f"x{number}", torch.zeros(number + 1))], header=2) for number in range(COUNT))


def pending(**settings: object) -> PendingFragments:
    return PendingFragments(Agreed(size=2, max_staleness=1000, fragments=COUNT, **settings), Fragments(LAYOUTS))  # type: ignore[arg-type]


def vectors(value: float) -> list[Flat]:
    found = [Flat.zeros(layout) for layout in LAYOUTS]
    for one in found:
        one.segments()[0].fill_(value)
    return found


def value(snapshot: Snapshot) -> float:
    assert snapshot.vector is not None
    return float(snapshot.vector.segments()[0][0])


def test_fragments_come_in_turn_and_the_newest_stands_for_what_was_before() -> None:
    one = pending()
    one.hand_in(vectors(1.0), 4.0, 0, 4, None)
    one.hand_in(vectors(2.0), 4.0, 0, 8, None)
    first, second = one.take(1), one.take(2)
    assert (value(first), value(second)) == (2.0, 2.0)
    assert first.vector is not None and first.vector.layout is LAYOUTS[0]
    assert (first.weight, second.weight) == (8.0, 8.0)
    assert one.take(4).vector is None  # the first one again, and nothing new was handed in


def test_what_a_round_has_taken_is_not_in_a_later_one_before_it_was_applied() -> None:
    one = pending()
    one.hand_in(vectors(1.0), 4.0, 0, 4, None)
    one.take(1)
    one.hand_in(vectors(2.0), 4.0, 0, 8, None)  # the worker does not know of round 1 yet: these are all eight steps
    assert one.take(4).vector is None
    assert not one.hand_in(vectors(3.0), 1.0, 0, 9, None, is_last=True)
    assert one.hand_in(vectors(4.0), 1.0, 1, 9, None, is_last=True)
    assert value(one.take(4)) == 4.0


def test_what_came_back_is_given_again() -> None:
    one = pending()
    one.hand_in(vectors(1.0), 4.0, 0, 4, None)
    given = one.take(1)
    one.hand_in(vectors(2.0), 4.0, 0, 8, None)
    one.give_back(given)
    again = one.take(4)
    assert (value(again), again.weight) == (2.0, 8.0)
    one.give_back(again)
    assert value(one.take(7)) == 2.0


def test_where_all_settle_every_fragment_is_taken() -> None:
    one = pending()
    one.hand_in(vectors(1.0), 4.0, 0, 4, None)
    one.take(2)
    given = one.take(3, is_pause=True)
    assert given.vector is not None
    parts = one.fragments.split(given.vector)
    assert [float(part.segments()[0][0]) for part in parts] == [1.0, 0.0, 1.0]
    assert [part.layout for part in parts] == list(LAYOUTS)


def test_late_ones_count_less_or_not_at_all() -> None:
    falling, dropping = pending(late_weight="falling"), pending(late="drop")
    for one in (falling, dropping):
        one.hand_in(vectors(6.0), 4.0, 0, 4, None)
    assert value(falling.take(1 + COUNT)) == 3.0
    assert dropping.take(1 + COUNT).vector is None and dropping.ledger.expired == 4.0
    assert value(dropping.take(2)) == 6.0


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_uncounted(seed: int) -> None:
    draw, one, number, applied, out = random.Random(seed), pending(), 0, 0, list[Snapshot]()
    for _ in range(200):
        kind = draw.choice(["hand in", "take", "apply", "back"])
        if kind == "hand in":
            one.hand_in(vectors(1.0), draw.random(), applied, 0, None)
        elif kind == "take":
            number += 1
            out.append(one.take(number))
        elif kind == "back" and out:
            one.give_back(out.pop())
        elif kind == "apply":
            applied = number
            out.clear()
        assert one.ledger.produced == pytest.approx(one.ledger.taken + one.weight + one.ledger.lost)
    assert one.ledger.taken > 0
