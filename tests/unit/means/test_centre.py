"""The newest result that a rule looks from: in pieces at their owners, through checkpoints, deaths, and newcomers."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.aggregation import rules
from quorate.aggregation.rule import aggregated
from quorate.buckets.flat import layout_of
from quorate.core.contracts import Wire
from quorate.core.resize import LAW, resized
from quorate.core.vectors import Flat, bare_layout
from quorate.means.centre import OwnedCentre, WholeCentre
from quorate.means.fault_tolerant_sum import FaultTolerantSum
from quorate.means.robust import Robust, RobustState
from quorate.wire.cut import piece
from quorate.wire.failure import allow_going_on
from quorate.wire.virtual.world import VirtualWorld
from tests.support import drawn_vectors as vectors
from tests.support.drawn_vectors import numbers_of

LAYOUT = layout_of(
    [("a", torch.zeros(30, 10)), ("b", torch.zeros(401)), ("c", torch.zeros(1)), ("d", torch.zeros(0))],
    header=3,
    part_bytes=1200,
    first_part_bytes=1200,
)
"""Parts of which several workers own some."""
NUMBERS = 702
RULE = rules.get("centered-clipping")(f=1)
DIES = 3


drawn = partial(vectors.drawn, LAYOUT)


def wanted(ranks: Any, step: int, centre: Tensor) -> Tensor:
    """By the rule on whole vectors; its f only bounds what it takes."""
    return aggregated(RULE.with_f(0), torch.stack([numbers_of(drawn(rank, step)) for rank in ranks]), centre)


def without(rank: int, size: int, x: Tensor) -> Tensor:
    """Numbers of all tensors, without the pieces that a worker owns."""
    whole = Flat.zeros(LAYOUT)
    at = 0
    for index in range(len(LAYOUT.segments)):
        into = whole.segment(index).view(-1)
        into.copy_(x[at : at + into.numel()])
        at += into.numel()
    for number, part in enumerate(whole.parts):
        numel = bare_layout(LAYOUT).parts[number].numel
        part[piece(numel, rank, size)] = 0.0
    return numbers_of(whole)


def test_each_has_its_own_pieces_only() -> None:
    """The memory of a checkpoint is given up when the next sum begins."""

    def task(wire: Wire) -> tuple[int, dict[str, Tensor], Flat]:
        reducer = Robust(LAYOUT, wire, RULE, seed=7)
        for step in range(3):
            sums = reducer.start(drawn(wire.rank, step)).wait().clone()
            assert not reducer._state.newest
            assert step != 1 or reducer.state.newest
        state = reducer.state
        assert isinstance(reducer._from, OwnedCentre)
        return sum(own.numel() for _, own in reducer._from._own), state.newest, sums

    results = VirtualWorld(3, timeout=30.0).run(task)
    assert sum(count for count, _, _ in results) == NUMBERS
    whole = resized("total", "newest", [centre for _, centre, _ in results], 0, 3)
    torch.testing.assert_close(torch.cat(list(whole.values())), numbers_of(results[0][2]), rtol=0, atol=0)
    assert RobustState.__dataclass_fields__["newest"].metadata[LAW] == "total"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_checkpoint_brings_it_to_any_number_of_workers(size: int) -> None:
    def first(wire: Wire) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        reducer = Robust(LAYOUT, wire, RULE, seed=7)
        sums = [numbers_of(reducer.start(drawn(wire.rank, 0)).wait())]
        kept = {name: x.clone() for name, x in reducer.state.newest.items()}
        sums.append(numbers_of(reducer.start(drawn(wire.rank, 1)).wait()))
        return kept, *sums

    old = VirtualWorld(3, timeout=30.0).run(first)

    def second(wire: Wire) -> tuple[Tensor, dict[str, Tensor]]:
        reducer = Robust(LAYOUT, wire, RULE.with_f(0), seed=7)
        reducer.state.newest = resized("total", "newest", [kept for kept, _, _ in old], wire.rank, wire.size)
        again = reducer.state.newest  # another one is saved before a step is made
        return numbers_of(reducer.start(drawn(wire.rank, 1)).wait()), again

    results = VirtualWorld(size, timeout=30.0).run(second)
    expected = wanted(range(size), 1, old[0][1])
    for total, _ in results:
        torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)
    if size == 3:
        assert torch.equal(results[0][0], old[0][2]), "as if it had gone on"
    again = resized("total", "newest", [kept for _, kept in results], 0, size)
    torch.testing.assert_close(torch.cat(list(again.values())), old[0][1], rtol=0, atol=0)


def test_survivors_bring_their_pieces_and_divide_it_among_them() -> None:
    def task(wire: Wire) -> list[Tensor]:
        allow_going_on(wire.board, wire.size, name="t")
        wire.tolerate_deaths("gone")
        wire.barrier().wait()
        sums, totals = FaultTolerantSum(LAYOUT, wire, of=Robust(LAYOUT, wire, RULE, seed=7)), list[Tensor]()
        for step in range(4):
            if step == 1 and wire.rank == DIES:
                wire.crash()
            x = drawn(wire.rank, step)
            totals.append(numbers_of(sums.start(x, sums.kept(x)).wait()))
        assert isinstance(sums.of, Robust) and isinstance(sums.of._from, OwnedCentre)
        sums.of.commit()
        return [*totals, torch.tensor(sum(own.numel() for _, own in sums.of._from._own))]

    results = [outcome.result for outcome in VirtualWorld(4, timeout=30.0).outcomes(task) if outcome.result is not None]
    assert len(results) == 3
    assert all(torch.equal(x, y) for totals in results for x, y in zip(totals[:-1], results[0][:-1], strict=True))
    centre = without(DIES, 4, results[0][0])
    assert not torch.equal(centre, results[0][0])
    for step in range(1, 4):
        torch.testing.assert_close(results[0][step], wanted(range(3), step, centre), rtol=1e-5, atol=1e-5)
        centre = results[0][step]
    assert sum(int(totals[-1]) for totals in results) == NUMBERS, "they own all of it"


def test_a_newcomer_has_it_from_the_others() -> None:
    """One of three workers dies while another joins: the remaining ones form the same sum, bit for bit."""
    workers = {rank: Robust(LAYOUT, _Beside(rank, 3), RULE, seed=7) for rank in range(4)}

    def anew(step: int, ranks: tuple[int, ...]) -> Tensor:
        messages = [workers[rank].message(drawn(rank, step)) for rank in ranks]
        totals = []
        for rank in ranks:
            totals.append(numbers_of(workers[rank].sum_of(messages, ranks, [0] * len(ranks), drawn(rank))))
            workers[rank]._is_over = True
            workers[rank].commit()
        assert all(torch.equal(total, totals[0]) for total in totals)
        return totals[0]

    before = anew(0, (0, 1, 2))
    torch.testing.assert_close(before, wanted((0, 1, 2), 0, torch.zeros(NUMBERS)), rtol=1e-5, atol=1e-5)
    middle = anew(1, (0, 1, 3))
    torch.testing.assert_close(middle, wanted((0, 1, 3), 1, without(2, 3, before)), rtol=1e-5, atol=1e-5)
    then = anew(2, (0, 1, 3))
    torch.testing.assert_close(then, wanted((0, 1, 3), 2, middle), rtol=1e-5, atol=1e-5)


def test_a_sum_that_none_has_a_gradient_in_leaves_it_as_it_is() -> None:
    def task(wire: Wire) -> list[Tensor]:
        reducer = Robust(LAYOUT, wire, RULE, seed=7)
        vectors = (drawn(wire.rank, 0), drawn(wire.rank, 1, weight=0.0), drawn(wire.rank, 2))
        return [numbers_of(reducer.start(x).wait()).clone() for x in vectors]

    first, none, last = VirtualWorld(3, timeout=30.0).run(task)[0]
    assert not none.any()
    torch.testing.assert_close(last, wanted(range(3), 2, first), rtol=1e-5, atol=1e-5)


def test_tensors_of_another_layout_keep_what_is_still_their_owners() -> None:
    wider = layout_of([("new", torch.zeros(2)), ("a", torch.zeros(30, 10)), ("b", torch.zeros(401))], header=3)

    def task(wire: Wire) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        before, after = Robust(LAYOUT, wire, RULE, seed=7), Robust(wider, wire, RULE, seed=7)
        before.start(drawn(wire.rank)).wait()
        after.follows(before)
        return before.state.newest, after.state.newest

    results = VirtualWorld(3, timeout=30.0).run(task)
    whole, then = (resized("total", "newest", [states[which] for states in results], 0, 3) for which in (0, 1))
    assert not then["new"].any()
    for name in ("a", "b"):
        kept = then[name] != 0
        assert kept.any() and torch.equal(then[name][kept], whole[name][kept])


def test_where_all_have_it_a_checkpoint_is_not_written_over() -> None:
    """It may still be written while training goes on; else memory is used again."""
    centre = WholeCentre(LAYOUT)
    seen = []
    for step in range(6):
        lent = centre.entries(is_asked=True) if step == 2 else {}
        before = {name: x.clone() for name, x in lent.items()}
        if step == 2:
            kept = lent, before
        centre.formed(drawn(step).parts, [0])
        centre.commit()
        seen.append(centre.looked_from(0, slice(0, 3)).data_ptr())
        torch.testing.assert_close(
            torch.cat(list(centre.entries(is_asked=True).values())), numbers_of(drawn(step))
        ) if step > 4 else 0
    lent, before = kept
    assert all(torch.equal(x, before[name]) for name, x in lent.items())
    assert len(set(seen)) == 3, "memory is used again, but for what was lent"
    torch.testing.assert_close(torch.cat(list(centre.entries(is_asked=True).values())), numbers_of(drawn(5)))


class _Beside(SimpleNamespace):
    """The part of a wire that sums of messages need."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank=rank, size=size)
