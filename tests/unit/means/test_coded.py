"""Sums of what codecs have written small: nothing is lost, all have the same bits, and what came to nothing is encoded
again as if it had not been before."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.buckets.flat import layout_of
from quorate.codecs import codecs
from quorate.codecs.error_feedback import ERROR, ErrorFeedback
from quorate.codecs.top_k import TopK
from quorate.core.codec import Codec
from quorate.core.contracts import Wire
from quorate.core.vectors import Flat, digest_of, header_in, segments_by_part
from quorate.means.coded import Coded
from quorate.means.dense import Dense
from quorate.means.hierarchical import Hierarchical
from quorate.means.remembering import is_finite
from quorate.means.two_phase import TwoPhase, TwoPhaseState
from quorate.wire.metered import Meter, Metered
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld

LAYOUT = layout_of(
    [("a", torch.zeros(20, 3)), ("b", torch.zeros(3)), ("c", torch.zeros(3, 40)), ("d", torch.zeros(40))],
    header=2,
    part_bytes=200,
    first_part_bytes=200,
    coded=lambda name, x: x.dim() > 1,
)
SIZES = [1, 2, 3, 5]
KINDS: dict[str, type[Coded]] = {"gather": Coded, "two-phase": TwoPhase, "hierarchical": Hierarchical}
HOSTS = [0, 0, 1, 0, 1]
"""The hosts of workers: of three workers two are on the first host, and one on the second."""
WAYS = [(kind, name) for kind in KINDS for name in codecs.names() if kind == "gather" or not codecs.get(name).memories]


def fed_back(name: str) -> Codec:
    codec: Codec = codecs.get(name)()
    return ErrorFeedback(codec) if codec.needs_feedback else codec


def drawn(*seeds: int) -> Flat:
    draw = torch.Generator().manual_seed(hash(seeds) % 2**31)
    x = Flat([torch.randn(p.numel, generator=draw) for p in LAYOUT.parts], LAYOUT)
    header_in(x).fill_(1.0)
    return x


def left_out(reducer: Coded) -> dict[str, Tensor] | None:
    """By tensor, what will still come; None where nothing is fed back."""
    state = reducer.state
    owned = state.owned if isinstance(state, TwoPhaseState) else {}
    return (
        {name: x + owned.get(name, 0.0) for name, x in state.memory[ERROR].items()} if ERROR in state.memory else None
    )


def remembered(reducer: Coded) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in reducer.state.memory[ERROR].items()}


def together(size: int, task: Callable[[Wire], Any]) -> list[Any]:
    return VirtualWorld(size, timeout=30.0, network=Network(hosts=HOSTS[:size])).run(task)


def equal(first: Flat, other: Flat) -> bool:
    return all(torch.equal(x, y) for x, y in zip(first.parts, other.parts, strict=True))


def test_large_tensors_have_parts_of_their_own_and_the_header_has_not() -> None:
    assert [part.coded for part in LAYOUT.parts] == [True, True, False]
    assert [LAYOUT.segments[index].name for index in sum(segments_by_part(LAYOUT)[:2], ())] == [
        "c",
        "a",
    ]
    assert LAYOUT.parts[2].numel == 3 + 40 + 2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("kind", "name"), WAYS)
def test_results_and_errors_add_up_to_the_inputs(kind: str, name: str, size: int) -> None:
    """With error feedback; all have the same bits, and the header and small tensors are exact."""

    def task(wire: Wire) -> tuple[list[Flat], list[Flat], dict[str, Tensor] | None]:
        reducer = KINDS[kind](LAYOUT, wire, fed_back(name), seed=3)
        inputs = [drawn(wire.rank, step) for step in range(6)]
        sums = [reducer.start(x.clone()).wait() for x in inputs]
        return inputs, sums, left_out(reducer)

    results = together(size, task)
    for step in range(6):
        assert all(equal(own_sums[step], results[0][1][step]) for _, own_sums, _ in results)
        exact = [x.bare().parts[2] for x in (results[0][1][step], *(own_inputs[step] for own_inputs, _, _ in results))]
        torch.testing.assert_close(exact[0], torch.stack(exact[1:]).sum(0), rtol=1e-5, atol=1e-5)
        assert header_in(results[0][1][step]).tolist() == [size, size]
    if results[0][2] is not None:
        for index, name in ((0, "a"), (2, "c")):
            wanted = sum(
                vector.segment(index).flatten().double() for own_inputs, _, _ in results for vector in own_inputs
            )
            received = sum(vector.segment(index).flatten().double() for vector in results[0][1])
            left = sum(error[name].double() for _, _, error in results)
            torch.testing.assert_close(received + left, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_numbers_are_the_dense_sum(kind: str, size: int) -> None:
    def task(wire: Wire) -> tuple[Flat, Flat]:
        x = drawn(wire.rank)
        coded = KINDS[kind](LAYOUT, wire, TopK(density=1.0), seed=0).start(x.clone()).wait()
        return coded, Dense(LAYOUT, wire).start(x.clone()).wait()

    for coded, dense in together(size, task):
        for x, y in zip(coded.parts, dense.parts, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "name"), WAYS)
def test_bytes_on_the_wire_are_those_stated(kind: str, name: str) -> None:
    def task(wire: Wire) -> tuple[int, int | None]:
        meter = Meter()
        reducer = KINDS[kind](LAYOUT, Metered(wire, meter), fed_back(name), seed=0)
        reducer.start(drawn(wire.rank)).wait()
        return sum(meter.bytes_out.values()), reducer.wire_bytes(wire.size)

    for sent, stated in together(3, task):
        assert stated in (None, sent)


@pytest.mark.parametrize("name", ["top-k", "half"])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_comes_out_as_nan_and_is_not_remembered(kind: str, name: str, bad: float) -> None:
    def task(wire: Wire) -> tuple[Flat, Flat, Any, Any]:
        reducer = KINDS[kind](LAYOUT, wire, ErrorFeedback(codecs.get(name)()), seed=0)
        reducer.start(drawn(wire.rank, 0)).wait()
        before = remembered(reducer)
        x = drawn(wire.rank, 1)
        if wire.rank == 1:
            x.parts[0][7] = bad
        total = reducer.start(x).wait()
        after = remembered(reducer)
        return total, reducer.start(drawn(wire.rank, 2)).wait(), before, after

    for rank, (total, then, before, after) in enumerate(together(3, task)):
        assert total.parts[0].isnan().any() and total.parts[1].isfinite().all()
        assert all(part.isfinite().all() for part in then.parts)
        assert kind == "hierarchical" or torch.equal(before["c"], after["c"]) == (rank == 1)
        assert kind == "hierarchical" or not torch.equal(before["a"], after["a"])


@pytest.mark.parametrize("part", [0, 2], ids=["coded", "dense"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_is_summed_again_counts_once(kind: str, part: int) -> None:
    """The result is the same as without its first numbers."""

    def task(wire: Wire, *, again: bool) -> tuple[list[Flat], dict[str, Tensor]]:
        reducer, totals = KINDS[kind](LAYOUT, wire, ErrorFeedback(TopK(density=0.1)), seed=0), []
        for step in range(3):
            x, changed = drawn(wire.rank, step), drawn(wire.rank, step, 1)
            if not again:
                x.parts[part].copy_(changed.parts[part])
            sums = reducer.start(x).wait()
            if again:
                sums.parts[part].copy_(changed.parts[part])
                reducer.again(part, sums.parts[part]).wait()
            totals.append(sums.clone())
        return totals, remembered(reducer)

    for (totals, error), (wanted, left) in zip(
        together(3, lambda wire: task(wire, again=True)), together(3, lambda wire: task(wire, again=False)), strict=True
    ):
        assert all(map(equal, totals, wanted)) and all(torch.equal(error[name], left[name]) for name in "ac")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_remembered_goes_on_with_other_parameters(kind: str) -> None:
    """One froze, and another one came."""
    other = layout_of(
        [("e", torch.zeros(9, 9)), ("c", torch.zeros(3, 40))], header=2, coded=lambda name, x: x.dim() > 1
    )

    def task(wire: Wire) -> tuple[Tensor, Tensor, Tensor, int]:
        before = KINDS[kind](LAYOUT, wire, ErrorFeedback(TopK(density=0.1)), seed=0)
        before.start(drawn(wire.rank)).wait()
        after = KINDS[kind](other, wire, ErrorFeedback(TopK(density=0.1)), seed=0)
        there = left_out(before)
        assert there is not None
        wanted = there["c"].clone()
        after.follows(before)
        error = after.state.memory[ERROR]
        return wanted, error["c"], error["e"], after.state.sums[digest_of(other)]

    for old, new, fresh, sums in together(3, task):
        assert torch.equal(old, new) and not fresh.any() and sums == 1
    assert old.any()


def test_vectors_of_another_layout_share_what_is_remembered() -> None:
    """The error of a tensor continues in whichever vector it is next, as in fragments."""
    alone = layout_of([("c", torch.zeros(3, 40)), ("n", torch.zeros(1))], coded=lambda name, x: x.dim() > 1)

    def task(wire: Wire) -> tuple[Tensor, Tensor]:
        reducer = Coded(LAYOUT, wire, ErrorFeedback(TopK(density=0.1)), seed=0)
        inputs, received = torch.zeros(120), torch.zeros(120)
        for step in range(4):
            x = drawn(wire.rank, step)
            inputs += x.segment(2).flatten()
            if step % 2:
                small = Flat.zeros(alone)
                small.segment(0).copy_(x.segment(2))
                received += reducer.start(small).wait().segment(0).flatten()
            else:
                received += reducer.start(x).wait().segment(2).flatten()
        return inputs - reducer.state.memory[ERROR]["c"], received

    results = together(3, task)
    torch.testing.assert_close(sum(inputs for inputs, _ in results), results[0][1], rtol=1e-4, atol=1e-4)


def test_what_is_not_finite_is_seen_and_what_adds_up_to_too_much_is_finite() -> None:
    for bad in (math.inf, -math.inf, math.nan):
        assert not is_finite(torch.tensor([1.0, bad, 2.0]))
    assert not is_finite(torch.tensor([math.inf, -math.inf]))
    assert is_finite(torch.full((100,), 3e38))
    assert is_finite(torch.full((100,), 6e4, dtype=torch.float16))
    assert is_finite(torch.zeros(0))
    assert is_finite(torch.ones(2, dtype=torch.complex64))
