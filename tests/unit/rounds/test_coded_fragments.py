"""What codecs leave out of fragments that are handed in: what came and what is left are what rounds have taken."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.buckets.flat import layout_of
from quorate.codecs import codecs
from quorate.core.vectors import Flat, Layout, bare_layout
from quorate.rounds.buffer import Snapshot
from quorate.rounds.coding import Coding
from quorate.rounds.fragments import CodedFragments, Fragments, PendingFragments
from quorate.rounds.terms import Agreed


def of(*names: str, numbers: bool = False) -> Layout:
    """Matrices, a bias with each, and behind them what travels beside."""
    tensors = [(f"{name}{kind}", x) for name in names for kind, x in (("", torch.zeros(9, 7)), (".b", torch.zeros(4)))]
    tensors += [("numbers", torch.zeros(2))] if numbers else []
    return layout_of(tensors, header=2, coded=lambda name, x: x.dim() > 1)


WHOLE = of("a", "b", "c")
LAYOUTS = (of("a", numbers=True), of("b", "c", numbers=True))
NAMES = [name for name in codecs.names() if not codecs.get(name).memories]


def pending(name: str = "top-k") -> PendingFragments:
    one = PendingFragments(Agreed(size=2, max_staleness=1000, fragments=2), Fragments(LAYOUTS))
    one.coding = CodedFragments(Coding(codecs.get(name)(), WHOLE, 3, 1, feeds_back=True), LAYOUTS)
    return one


def drawn(seed: int) -> list[Flat]:
    draw = torch.Generator().manual_seed(seed)
    return [Flat([torch.randn(p.numel, generator=draw) for p in layout.parts], layout) for layout in LAYOUTS]


def tensors(snapshot: Snapshot) -> dict[str, Tensor]:
    """What is given of each matrix."""
    if snapshot.vector is None:
        return {}
    named = zip(snapshot.vector.layout.segments, snapshot.vector.segments(), strict=True)
    return {one.name: x.double() for one, x in named if len(one.shape) > 1}


def left(one: PendingFragments, name: str) -> Tensor:
    assert one.coding is not None
    error = one.coding.error_without(())
    if error is None:
        return torch.zeros(9, 7).double()
    return next(x for s, x in zip(error.layout.segments, error.segments(), strict=True) if s.name == name).double()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.seeds(2, 10)
def test_nothing_is_lost_whatever_becomes_of_rounds(name: str, seed: int) -> None:
    """A worker goes on from where it is, hands in how far it is, and is put back by what a round has of it."""
    draw, one, way = random.Random(seed), pending(name), [vector * 0.0 for vector in drawn(0)]
    wanted = {n: torch.zeros(9, 7).double() for n in "abc"}
    came = {n: torch.zeros(9, 7).double() for n in "abc"}
    for number in range(1, 40):
        step = drawn(1000 * seed + number)
        way = [x + y for x, y in zip(way, step, strict=True)]
        one.hand_in([x.clone() for x in way], 1.0, number - 1, 0, None)
        taken = one.take(number, is_pause=draw.random() < 0.1)
        if draw.random() < 0.3:
            one.give_back(taken)
            continue
        for place, layout in enumerate(LAYOUTS):
            for index, segment in enumerate(layout.segments):
                if segment.name in tensors(taken):
                    wanted[segment.name] += way[place].segment(index)
                    came[segment.name] += tensors(taken)[segment.name]
        way = [x * 0.0 if LAYOUTS[n].segments[0].name in tensors(taken) else x for n, x in enumerate(way)]
    for n in "abc":
        torch.testing.assert_close(came[n] + left(one, n), wanted[n], rtol=1e-4, atol=1e-3)
        assert left(one, n).any()


def test_what_came_back_leaves_the_error_as_it_was_and_is_coded_with_it() -> None:
    one = pending()
    one.hand_in(drawn(1), 1.0, 0, 0, None)
    one.take(1)
    before = left(one, "a")
    one.hand_in(drawn(2), 1.0, 1, 0, None)
    taken = one.take(3)
    assert not torch.equal(left(one, "a"), before)
    torch.testing.assert_close(tensors(taken)["a"] + left(one, "a"), before + drawn(2)[0].segment(0).double())
    one.give_back(taken)
    torch.testing.assert_close(left(one, "a"), before, rtol=1e-5, atol=1e-5)


def test_what_is_handed_in_stays_as_it_was_and_what_is_beside_is_exact() -> None:
    """The worker goes on by what it has handed in, whatever is given in its place."""
    one, given = pending(), drawn(1)
    one.hand_in(given, 1.0, 0, 0, None)
    taken = one.take(1)
    assert taken.vector is not None
    assert all(torch.equal(x, y) for x, y in zip(given[0].parts, drawn(1)[0].parts, strict=True))
    assert torch.equal(taken.vector.segments()[-1], given[0].segments()[-1])
    assert torch.equal(taken.vector.segments()[1], given[0].segments()[1])
    assert not torch.equal(taken.vector.segments()[0], given[0].segments()[0])


def test_where_all_settle_ways_are_whole_and_errors_wait_on() -> None:
    one = pending()
    one.hand_in(drawn(1), 1.0, 0, 0, None)
    one.take(1)
    before = left(one, "a")
    one.hand_in(drawn(2), 1.0, 1, 0, None)
    assert torch.equal(tensors(one.take(2, is_pause=True))["a"], drawn(2)[0].segment(0).double())
    assert torch.equal(left(one, "a"), before) and before.any()


def test_where_no_step_was_made_errors_wait_on() -> None:
    one = pending()
    one.hand_in(drawn(1), 1.0, 0, 0, None)
    one.take(1)
    before = left(one, "a")
    one.hand_in([vector * 0.0 for vector in drawn(1)], 0.0, 1, 0, None)
    taken = one.take(3)
    assert not tensors(taken)["a"].any() and torch.equal(left(one, "a"), before)


def test_what_a_checkpoint_keeps_is_as_it_was_after_its_round_and_is_gone_on_from() -> None:
    one, snapshots, at = pending(), dict[int, Any](), Flat.zeros(bare_layout(WHOLE))
    for number in range(1, 7):
        one.hand_in(drawn(number), 1.0, number - 1, 0, None)
        snapshots[number] = one.take(number)
        if number == 3:
            for index, segment in enumerate(WHOLE.segments):
                if len(segment.shape) > 1:
                    at.segment(index).copy_(left(one, segment.name))
    kept = one.kept(snapshots, 3)
    assert kept.error is not None and kept.entries == []
    for x, y in zip(kept.error.parts, at.parts, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
    again = pending()
    again.restore(kept)
    assert all(torch.equal(left(again, n), left_in(kept.error, n)) for n in "abc")
    again.restore(pending().kept({}, 0))
    assert not left(again, "a").any()


def left_in(error: Flat, name: str) -> Tensor:
    return next(x for s, x in zip(error.layout.segments, error.segments(), strict=True) if s.name == name).double()


def test_tensors_that_stay_keep_their_errors_in_other_fragments() -> None:
    one = pending()
    one.hand_in(drawn(1), 1.0, 0, 0, None)
    one.take(1)
    one.take(2)
    before = {n: left(one, n) for n in "abc"}
    one.lay_out(Fragments((of("c", "a", numbers=True), of("d", numbers=True))))
    assert one.coding is not None
    assert torch.equal(left(one, "a"), before["a"]) and torch.equal(left(one, "c"), before["c"])
    assert not left(one, "b").any() and before["b"].any()
