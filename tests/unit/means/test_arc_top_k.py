"""ARC-Top-K against its equations, and against the mistakes that public ports of it have made."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.buckets.flat import layout_of
from quorate.core.codec import Draw
from quorate.core.contracts import Wire
from quorate.core.vectors import Flat, coded_segments
from quorate.means.arc_top_k import ArcTopK, ArcTopKSettings
from quorate.wire.metered import Meter, Metered
from quorate.wire.virtual.world import VirtualWorld

SHAPES = {"wide": (24, 40), "tall": (60, 16), "deep": (16, 5, 4)}
LAYOUT = layout_of(
    [
        ("bias", torch.zeros(7)),
        *((name, torch.zeros(shape)) for name, shape in SHAPES.items()),
        ("d", torch.ones(2, 3)),
    ],
    header=2,
    part_bytes=1 << 20,
    first_part_bytes=1 << 20,
    coded=lambda name, x: x.dim() > 1,
)
"""Three matrices and one that is too small to be smaller, all in one part."""
INDEX = {segment.name: index for index, segment in enumerate(LAYOUT.segments)}
NAMES = [
    segment.name for segment in coded_segments(LAYOUT)[LAYOUT.segments[INDEX["wide"]].part] if segment.name in SHAPES
]
"""In the order of memory."""
PART = LAYOUT.segments[INDEX["wide"]].part


def drawn(*seeds: int) -> Flat:
    draw = torch.Generator().manual_seed(hash(seeds) % 2**31)
    return Flat([torch.randn(p.numel, generator=draw) for p in LAYOUT.parts], LAYOUT)


def together(size: int, task: Any) -> list[Any]:
    return VirtualWorld(size, timeout=30.0).run(task)


def made(wire: Wire, **settings: Any) -> ArcTopK:
    return ArcTopK(LAYOUT, wire, ArcTopKSettings(**{"start": 1, "rank": 2, **settings}), seed=5)


def sums(wire: Wire, steps: int, **settings: Any) -> tuple[list[Flat], list[Flat], Any]:
    """Return the inputs of this worker, the sums, and the reducer's memory."""
    torch.manual_seed(wire.rank)  # no generator of the script has a part in it
    reducer = made(wire, **settings)
    inputs = [drawn(wire.rank, step) for step in range(steps)]
    return inputs, [reducer.start(x.clone()).wait().clone() for x in inputs], reducer.state


def matrix(x: Flat, name: str) -> Tensor:
    return x.segment(INDEX[name]).double().reshape(SHAPES[name][0], -1)


def by_equations(inputs: list[list[Flat]], steps: int, density: float = 0.2, rank: int = 2) -> dict[str, list[Tensor]]:
    """The results by Algorithm 1, and equations 11a to 11c, with sums in place of means: one dense step first."""
    results: dict[str, list[Tensor]] = {name: [] for name in SHAPES}
    sent: dict[str, list[Tensor]] = {}
    average: dict[str, list[Tensor]] = {}
    for step in range(steps):
        generator = Draw(seed=5, round=step, part=PART).generator(torch.device("cpu"), shared=True)
        for name in NAMES:
            gradients = [matrix(of_worker[step], name) for of_worker in inputs]
            if not step:
                average[name], sent[name] = list(gradients), [g.clone() for g in gradients]
                results[name].append(sum(gradients))
                continue
            average[name] = [0.9 * h + 0.1 * g for h, g in zip(average[name], gradients, strict=True)]
            left = [h - e for h, e in zip(average[name], sent[name], strict=True)]
            v = torch.randn(left[0].shape[1], rank, generator=generator).double() / math.sqrt(rank)
            sketch = sum(x @ v for x in left)
            count = math.ceil(density * len(sketch))
            rows = sketch.square().sum(1).topk(count).indices
            for e, x in zip(sent[name], left, strict=True):
                e[rows] += x[rows]
            results[name].append(sum(sent[name]))
    return results


@pytest.mark.parametrize("size", [1, 2, 3])
def test_it_equals_the_equations(size: int) -> None:
    """So V is the same on all workers and fits the columns, rows are rows of their own tensor, their number is that of
    the density, and what is sent tracks an average in place of adding up what was left out."""
    steps = 6
    results = together(size, lambda wire: sums(wire, steps))
    wanted = by_equations([inputs for inputs, _, _ in results], steps)
    for step in range(steps):
        for _, totals, _ in results:
            assert all(map(torch.equal, totals[step].parts, results[0][1][step].parts))
        for name in SHAPES:
            torch.testing.assert_close(matrix(results[0][1][step], name), wanted[name][step], rtol=1e-4, atol=1e-5)


def test_all_workers_draw_one_sketch_whatever_their_own_generators_are() -> None:
    """A port that draws V by each worker's own `randn` adds up sketches that mean nothing together."""

    def task(wire: Wire) -> tuple[list[Tensor], list[Tensor]]:
        torch.manual_seed(wire.rank)
        reducer = made(wire)
        first = reducer._drawn(PART, torch.zeros(1))
        reducer.start(drawn(wire.rank)).wait()
        reducer.commit()
        return first, reducer._drawn(PART, torch.zeros(1))

    (first, second), *others = together(3, task)
    assert all(map(torch.equal, first, other)) if (other := others[0][0]) else False
    assert all(torch.equal(x, y) for of_worker, _ in others for x, y in zip(first, of_worker, strict=True))
    assert not any(map(torch.equal, first, second)), "each sum has its own"


def test_the_sketch_has_one_row_for_each_row_that_may_be_sent() -> None:
    """A port with V for the other side chooses among columns, and sums the wrong numbers of tensors that are not
    square: here the row of one tensor is far longer, and comes out whole."""

    def task(wire: Wire) -> Flat:
        reducer = made(wire, density=0.01, momentum=0.0)
        reducer.start(Flat.zeros(LAYOUT)).wait()
        x = Flat.zeros(LAYOUT)
        for name in SHAPES:
            row = x.segment(INDEX[name]).view(SHAPES[name][0], -1)
            row[11 - wire.rank], row[5] = 1.0 + wire.rank, 0.001
        return reducer.start(x).wait()

    total = together(2, task)[0]
    for name, (rows, *_) in SHAPES.items():
        numbers = matrix(total, name)
        kept = numbers.any(1).nonzero().view(-1).tolist()
        assert kept == [10], f"of {rows} rows the longest of the sum is sent, and it alone"
        assert bool((numbers[10] == 2.0).all())


@pytest.mark.parametrize(
    ("density", "count"), [(0.2, {"wide": 5, "tall": 12, "deep": 4}), (0.001, dict.fromkeys(SHAPES, 1))]
)
def test_the_density_is_a_share_of_the_rows(density: float, count: dict[str, int]) -> None:
    """A port that takes the share for the count sends no row, or one."""
    results = together(2, lambda wire: sums(wire, 3, density=density))
    _, totals, _ = results[0]
    for name, rows in count.items():
        changed = (matrix(totals[2], name) != matrix(totals[1], name)).any(1)
        assert int(changed.sum()) == rows


def test_of_a_constant_gradient_the_estimate_stays_that_gradient() -> None:
    """A port with plain residuals in place of the tracking of averages adds what it has left out to what it sends."""

    def task(wire: Wire) -> list[Flat]:
        reducer, x = made(wire), drawn(wire.rank)
        return [reducer.start(x.clone()).wait().clone() for _ in range(8)]

    first, *others = together(3, task)[0]
    for total in others:
        for name in SHAPES:
            torch.testing.assert_close(matrix(total, name), matrix(first, name), rtol=1e-5, atol=1e-5)


def test_of_a_new_constant_gradient_the_estimate_reaches_it() -> None:
    def task(wire: Wire) -> tuple[Flat, Flat]:
        reducer = made(wire, momentum=0.5)
        reducer.start(drawn(wire.rank, 1)).wait()
        x = drawn(wire.rank, 2)
        for _ in range(60):
            total = reducer.start(x.clone()).wait()
        return x, total

    results = together(2, task)
    for name in SHAPES:
        wanted = sum(matrix(x, name) for x, _ in results)
        torch.testing.assert_close(matrix(results[0][1], name), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_all_have_sent_adds_up_to_the_estimate(size: int) -> None:
    results = together(size, lambda wire: sums(wire, 5, start=2))
    for name, index in INDEX.items():
        sent = sum(state.sent.segment(index).double() for _, _, state in results)
        for _, _, state in results:
            torch.testing.assert_close(state.estimate.segment(index).double(), sent, rtol=1e-5, atol=1e-5)
        assert bool(sent.any()) == (name in SHAPES)


def test_dense_sums_come_first_and_small_tensors_stay_dense() -> None:
    for inputs, totals, _ in together(1, lambda wire: sums(wire, 3, start=2)):
        for step in range(2):
            assert all(map(torch.equal, inputs[step].parts, totals[step].parts))
        for name in ("bias", "d"):
            assert torch.equal(inputs[2].segment(INDEX[name]), totals[2].segment(INDEX[name]))
        assert not torch.equal(inputs[2].segment(INDEX["wide"]), totals[2].segment(INDEX["wide"]))


def test_bytes_on_the_wire_are_those_stated() -> None:
    def task(wire: Wire) -> tuple[int, int]:
        meter = Meter()
        reducer = ArcTopK(LAYOUT, Metered(wire, meter), ArcTopKSettings(start=1), seed=0)
        reducer.start(drawn(wire.rank)).wait()
        before = sum(meter.bytes_out.values())
        reducer.start(drawn(wire.rank, 1)).wait()
        return sum(meter.bytes_out.values()) - before, reducer.wire_bytes(wire.size)

    for sent, stated in together(3, task):
        assert abs(sent - stated) <= 4, "each sum is rounded up by itself"


def test_a_large_square_matrix_takes_a_fifth_of_the_bytes() -> None:
    layout = layout_of([("a", torch.zeros(4096, 4096))], coded=lambda name, x: True)
    reducer = together(1, lambda wire: ArcTopK(layout, wire, ArcTopKSettings(), seed=0))[0]
    dense = 2 * 3 * 4096 * 4096 * 4 / 4
    assert round(reducer.wire_bytes(4) / dense, 3) == 0.201


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("at", [0, 2])
def test_what_is_not_finite_comes_out_as_such_and_is_not_remembered(bad: float, at: int) -> None:
    def task(wire: Wire) -> tuple[list[Flat], int]:
        reducer, totals = made(wire), []
        for step in range(4):
            x = drawn(wire.rank, step)
            if wire.rank == 1 and step == at:
                x.segment(INDEX["tall"]).view(-1)[7] = bad
            totals.append(reducer.start(x).wait().clone())
        return totals, reducer.state.sums

    for totals, count in together(3, task):
        assert [bool(total.segment(INDEX["tall"]).isfinite().all()) for total in totals] == [n != at for n in range(4)]
        assert count == (4 if at else 3), "averages begin with the first finite gradient"


@pytest.mark.parametrize("part", range(len(LAYOUT.parts)))
def test_a_part_that_is_summed_again_counts_once(part: int) -> None:
    def task(wire: Wire, *, again: bool) -> tuple[list[Flat], Any]:
        reducer, totals = made(wire), []
        for step in range(4):
            x, changed = drawn(wire.rank, step), drawn(wire.rank, step, 1)
            if not again:
                x.parts[part].copy_(changed.parts[part])
            total = reducer.start(x).wait()
            if again:
                total.parts[part].copy_(changed.parts[part])
                reducer.again(part, total.parts[part]).wait()
            totals.append(total.clone())
        return totals, reducer.state

    again, once = (together(3, lambda wire, again=again: task(wire, again=again)) for again in (True, False))
    for (totals, state), (wanted, kept) in zip(again, once, strict=True):
        for x, y in zip((*totals, state.sent, state.average), (*wanted, kept.sent, kept.average), strict=True):
            assert all(map(torch.equal, x.parts, y.parts))


def test_a_sum_that_is_retracted_leaves_no_trace_and_after_a_death_it_begins_again() -> None:
    def task(wire: Wire, retracts: bool) -> tuple[Flat, int]:
        reducer = made(wire)
        reducer.start(drawn(wire.rank, 0)).wait()
        if retracts:
            reducer.start(Flat.zeros(LAYOUT)).wait()
            reducer.retract()
        total = reducer.start(drawn(wire.rank, 1)).wait()
        reducer.message(drawn(wire.rank, 2))
        return total, reducer.state.sums

    with_it, without = (together(2, lambda wire, r=retracts: task(wire, r))[0] for retracts in (True, False))
    assert all(map(torch.equal, with_it[0].parts, without[0].parts))
    assert with_it[1] == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"density": 0.0}, "density is 0.0; it must be a share of all rows"),
        ({"rank": 0}, "rank is 0; it must be"),
        ({"momentum": 1.0}, "momentum is 1.0; it must be"),
        ({"start": 0}, "start is 0; it must be"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ArcTopKSettings(**settings)
