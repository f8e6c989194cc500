"""PowerSGD against its equations, and what it leaves out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from quorate.buckets.flat import layout_of
from quorate.core.contracts import Wire
from quorate.core.vectors import Flat
from quorate.means.dense import Dense
from quorate.means.power_sgd import PowerSGD, PowerSGDSettings
from quorate.wire.metered import Meter, Metered
from quorate.wire.virtual.world import VirtualWorld

LAYOUT = layout_of(
    [("a", torch.zeros(20, 12)), ("b", torch.zeros(3)), ("c", torch.zeros(8, 4, 5)), ("d", torch.zeros(2, 3))],
    header=2,
    part_bytes=600,
    first_part_bytes=600,
    coded=lambda name, x: x.dim() > 1,
)
"""`d` is too small to be a product of thin matrices, and in a coded part."""


def drawn(*seeds: int) -> Flat:
    draw = torch.Generator().manual_seed(hash(seeds) % 2**31)
    return Flat([torch.randn(p.numel, generator=draw) for p in LAYOUT.parts], LAYOUT)


def together(size: int, task: Any) -> list[Any]:
    return VirtualWorld(size, timeout=30.0).run(task)


def sums(wire: Wire, steps: int, **settings: Any) -> tuple[list[Flat], list[Flat], Any]:
    """Return the inputs of this worker, the sums, and the reducer's memory."""
    reducer = PowerSGD(LAYOUT, wire, PowerSGDSettings(**{"start": 0, "min_rate": 1.3, **settings}), seed=5)
    inputs = [drawn(wire.rank, step) for step in range(steps)]
    totals = [reducer.start(x.clone()).wait() for x in inputs]
    return inputs, totals, reducer.state


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("rank", [1, 2])
def test_results_and_errors_add_up_to_the_inputs(size: int, rank: int) -> None:
    results = together(size, lambda wire: sums(wire, 5, rank=rank))
    for step in range(5):
        for part in range(len(LAYOUT.parts)):
            assert all(
                torch.equal(totals[step].parts[part], results[0][1][step].parts[part]) for _, totals, _ in results
            )
    for index, segment in enumerate(LAYOUT.segments):
        wanted = sum(x.segment(index).double() for inputs, _, _ in results for x in inputs)
        received = sum(x.segment(index).double() for x in results[0][1])
        left = sum(state.error.segment(index).double() for _, _, state in results)
        torch.testing.assert_close(received + left, wanted, rtol=1e-4, atol=1e-4)
        assert bool(left.abs().max() > 0.1) == (segment.name in "ac")


@pytest.mark.parametrize("size", [1, 3])
def test_of_full_rank_it_is_the_dense_sum(size: int) -> None:
    def task(wire: Wire) -> tuple[Flat, Flat]:
        settings = PowerSGDSettings(rank=20, start=0, min_rate=1.0)
        reducer = PowerSGD(FULL, wire, settings, seed=5)
        x = Flat([torch.randn(p.numel, generator=torch.Generator().manual_seed(wire.rank)) for p in FULL.parts], FULL)
        reducer._parts[0] = _forced(reducer)
        return reducer.start(x.clone()).wait(), Dense(FULL, wire).start(x.clone()).wait()

    for low, dense in together(size, task):
        torch.testing.assert_close(low.parts[0], dense.parts[0], rtol=1e-4, atol=1e-4)


FULL = layout_of([("a", torch.zeros(6, 9))], header=1, coded=lambda name, x: True)


def _forced(reducer: PowerSGD) -> Any:
    """Thin matrices of full rank, which are never smaller."""
    from quorate.means.power_sgd import _Matrix, _Part

    return _Part([_Matrix(FULL.segments[0], 6, 9, 6)])


def test_it_equals_the_equations() -> None:
    """Two workers, three steps, one matrix, in numpy; products do not depend on which orthonormal basis is taken."""
    results = together(2, lambda wire: sums(wire, 3, rank=2))
    index, (n, m) = 0, (20, 12)
    q = _first_q(results)
    errors = [np.zeros((n, m)), np.zeros((n, m))]
    for step in range(3):
        inputs = [results[worker][0][step].segment(index).double().numpy() + errors[worker] for worker in (0, 1)]
        p = np.linalg.qr(sum(x @ q for x in inputs))[0]
        own = [x.T @ p for x in inputs]
        q = sum(own)
        errors = [x - p @ y.T for x, y in zip(inputs, own, strict=True)]
        np.testing.assert_allclose(results[0][1][step].segment(index).numpy(), p @ q.T, atol=1e-4)
    for worker in (0, 1):
        np.testing.assert_allclose(results[worker][2].error.segment(index).numpy(), errors[worker], atol=1e-4)
    np.testing.assert_allclose(results[0][2].q["a"].norm().item(), np.linalg.norm(q), rtol=1e-4)


def _first_q(results: Any) -> Any:
    from quorate.core.codec import Draw

    part = LAYOUT.segments[0].part
    draw = Draw(seed=5, round=0, part=part).generator(torch.device("cpu"), shared=True)
    return torch.randn(12, 2, generator=draw).double().numpy()


def test_it_is_dense_at_first() -> None:
    for inputs, totals, state in together(1, lambda wire: sums(wire, 2, start=2)):
        assert all(torch.equal(x.parts[n], y.parts[n]) for x, y in zip(inputs, totals, strict=True) for n in (0, 1, 2))
        assert not any(q.any() for q in state.q.values()) and not any(part.any() for part in state.error.parts)


def test_bytes_on_the_wire_are_those_stated() -> None:
    def task(wire: Wire) -> tuple[int, int]:
        meter = Meter()
        reducer = PowerSGD(LAYOUT, Metered(wire, meter), PowerSGDSettings(rank=1, start=0), seed=0)
        reducer.start(drawn(wire.rank)).wait()
        return sum(meter.bytes_out.values()), reducer.wire_bytes(wire.size)

    for sent, stated in together(3, task):
        assert abs(sent - stated) <= 3, "each sum is rounded up by itself"


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_what_is_not_finite_comes_out_as_such_and_is_not_remembered(bad: float) -> None:
    def task(wire: Wire) -> tuple[Flat, Flat]:
        reducer = PowerSGD(LAYOUT, wire, PowerSGDSettings(start=0, min_rate=1.0, rank=1), seed=0)
        reducer.start(drawn(wire.rank, 0)).wait()
        x = drawn(wire.rank, 1)
        if wire.rank == 1:
            x.segment(0).view(-1)[7] = bad
        total = reducer.start(x).wait()
        return total, reducer.start(drawn(wire.rank, 2)).wait()

    for total, then in together(3, task):
        assert not total.segment(0).isfinite().all()
        assert all(part.isfinite().all() for part in then.parts)


def test_zeros_stay_zeros() -> None:
    def task(wire: Wire) -> Flat:
        return PowerSGD(LAYOUT, wire, PowerSGDSettings(start=0), seed=0).start(Flat.zeros(LAYOUT)).wait()

    assert not any(part.any() for total in together(2, task) for part in total.parts)


def test_a_sum_that_is_retracted_leaves_the_error() -> None:
    """At a pause all contribute zeros, and the result is discarded: the error must not be in it."""

    def task(wire: Wire) -> tuple[Flat, Flat]:
        reducer = PowerSGD(LAYOUT, wire, PowerSGDSettings(start=0, min_rate=1.3), seed=5)
        reducer.start(drawn(wire.rank, 0)).wait()
        before = reducer.state.error.clone()
        reducer.start(Flat.zeros(LAYOUT)).wait()
        reducer.retract()
        return before, reducer.state.error

    for before, after in together(2, task):
        assert all(map(torch.equal, before.parts, after.parts)) and any(part.any() for part in after.parts)


@pytest.mark.parametrize("part", range(len(LAYOUT.parts)))
def test_a_part_that_is_summed_again_counts_once(part: int) -> None:
    def task(wire: Wire, *, again: bool) -> tuple[list[Flat], Flat]:
        reducer, totals = PowerSGD(LAYOUT, wire, PowerSGDSettings(start=0, min_rate=1.3), seed=5), []
        for step in range(3):
            x, changed = drawn(wire.rank, step), drawn(wire.rank, step, 1)
            if not again:
                x.parts[part].copy_(changed.parts[part])
            sums = reducer.start(x).wait()
            if again:
                sums.parts[part].copy_(changed.parts[part])
                reducer.again(part, sums.parts[part]).wait()
            totals.append(sums.clone())
        return totals, reducer.state.error

    again, once = (together(3, lambda wire, again=again: task(wire, again=again)) for again in (True, False))
    for (totals, error), (wanted, left) in zip(again, once, strict=True):
        for total, other in zip((*totals, error), (*wanted, left), strict=True):
            assert all(torch.equal(x, y) for x, y in zip(total.parts, other.parts, strict=True))


RESNET18 = [
    *((64, 3, 3, 3), *4 * [(64, 64, 3, 3)], (128, 64, 1, 1), (128, 64, 3, 3), *3 * [(128, 128, 3, 3)]),
    *((256, 128, 1, 1), (256, 128, 3, 3), *3 * [(256, 256, 3, 3)]),
    *((512, 256, 1, 1), (512, 256, 3, 3), *3 * [(512, 512, 3, 3)], (10, 512)),
]
"""Its weights for images of 32 by 32 pixels; each convolution has a norm behind it, and the last layer a bias."""


@pytest.mark.parametrize(("rank", "times"), [(1, 243), (2, 136), (4, 72)])
def test_a_resnet18_is_as_many_times_less_as_published(rank: int, times: int) -> None:
    """Vogels et al., table 3."""
    tensors = [torch.zeros(shape) for weight in RESNET18 for shape in (weight, weight[:1], weight[:1])][:-1]
    layout = layout_of([(str(place), x) for place, x in enumerate(tensors)], coded=lambda name, x: x.dim() > 1)
    settings = PowerSGDSettings(rank=rank, start=0)
    small = together(1, lambda wire: PowerSGD(layout, wire, settings, seed=0).wire_bytes(16))[0]
    dense = sum(Dense(layout, wire).wire_bytes(16) for wire in together(1, lambda wire: wire))
    assert round(dense / small) == times
