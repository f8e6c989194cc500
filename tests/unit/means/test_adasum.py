"""Adasum against its equation, written plainly, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import quorate
from quorate.buckets.flat import layout_of
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, Mismatch, PeerFailed
from quorate.core.vectors import Flat, Layout, Part, Segment, header_in
from quorate.means.adasum import Adasum
from quorate.means.reduction import reduction_of
from quorate.train.combination import Combination
from quorate.train.compatibility import check
from quorate.wire.metered import Meter, Metered
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

LAYOUT = layout_of(
    [("a", torch.zeros(5, 3)), ("b", torch.zeros(7)), ("c", torch.zeros(1)), ("d", torch.zeros(0))],
    header=3,
    part_bytes=40,
    first_part_bytes=40,
)
"""Three parts; some tensors are smaller than there are pieces."""
SIZES = (1, 2, 3, 5, 8)


def drawn(rank: int, layout: Layout = LAYOUT) -> Flat:
    x = Flat.zeros(layout)
    for part in x.parts:
        part.copy_(torch.randn(part.shape, generator=torch.Generator().manual_seed(rank), dtype=torch.float64))
    header_in(x).fill_(rank + 1.0)
    return x


def plain(vectors: Sequence[Tensor]) -> Tensor:
    """Return the adaptive sum of one tensor of all workers, in float64: surplus workers first, then neighbours."""

    def two(a: Tensor, b: Tensor) -> Tensor:
        ab, aa, bb = float(a @ b), float(a @ a), float(b @ b)
        return (1 - ab / (2 * aa) if aa else 1) * a + (1 - ab / (2 * bb) if bb else 1) * b

    level = [x.reshape(-1).double() for x in vectors]
    whole = 1
    while 2 * whole <= len(level):
        whole *= 2
    surplus = len(level) - whole
    level = [two(level[2 * k], level[2 * k + 1]) for k in range(surplus)] + level[2 * surplus :]
    while len(level) > 1:
        level = [two(level[k], level[k + 1]) for k in range(0, len(level), 2)]
    return level[0]


def formed(size: int, vector_of: Callable[[int], Flat]) -> list[Flat]:
    def task(wire: Wire) -> Flat:
        x = vector_of(wire.rank)
        return Adasum(x.layout, wire).start(x).wait().clone()

    return VirtualWorld(size, timeout=30.0).run(task)


def of(value: Callable[[int], Sequence[float]]) -> Callable[[int], Flat]:
    """A vector of one tensor for each rank."""

    def made(rank: int) -> Flat:
        x = Flat.zeros(layout_of([("x", torch.zeros(8))]))
        x.parts[0].copy_(torch.tensor(value(rank)))
        return x

    return made


@pytest.mark.parametrize("size", SIZES)
def test_it_equals_the_equation_of_each_tensor_with_the_same_bits_everywhere(size: int) -> None:
    sums = formed(size, drawn)
    assert all(torch.equal(x, y) for other in sums for x, y in zip(other.parts, sums[0].parts, strict=True))
    for index in range(len(LAYOUT.segments)):
        wanted = plain([drawn(rank).segment(index) for rank in range(size)])
        torch.testing.assert_close(sums[0].segment(index).reshape(-1).double(), wanted, rtol=1e-5, atol=1e-5)
    assert header_in(sums[0]).tolist() == [size * (size + 1) / 2] * 3, "what travels with gradients is summed"


@pytest.mark.parametrize("size", SIZES)
def test_equal_ones_are_the_gradient_itself_and_orthogonal_ones_the_sum(size: int) -> None:
    assert formed(size, of(lambda rank: range(8)))[0].parts[0].tolist() == list(range(8))
    assert formed(size, of(lambda rank: torch.eye(8)[rank].tolist()))[0].parts[0].tolist() == [1] * size + [0] * (
        8 - size
    )


def test_opposite_ones_are_none_and_the_lengths_of_parallel_ones_are_averaged() -> None:
    assert not formed(2, of(lambda rank: [4.0 - 8 * rank] * 8))[0].parts[0].any()
    assert formed(2, of(lambda rank: [1.0 + 4 * rank] * 8))[0].parts[0].tolist() == [3.0] * 8


@pytest.mark.parametrize("size", [2, 3, 5])
def test_zeros_change_nothing(size: int) -> None:
    for giver in range(size):
        sums = formed(size, of(lambda rank, giver=giver: [float(rank == giver)] * 8))  # type: ignore[misc]
        assert sums[0].parts[0].tolist() == [1.0] * 8
    assert formed(size, of(lambda rank: [0.0] * 8))[0].parts[0].tolist() == [0.0] * 8


@pytest.mark.parametrize("factor", [2.0**-60, 2.0**50])
def test_multiplied_gradients_give_it_multiplied(factor: float) -> None:
    once, multiplied = (formed(3, lambda rank, f=f: drawn(rank) * f) for f in (1.0, factor))  # type: ignore[misc]
    assert all(torch.equal(x * factor, y) for x, y in zip(once[0].parts, multiplied[0].parts, strict=True))


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_what_is_not_finite_spoils_its_tensor_everywhere(bad: float) -> None:
    def vector_of(rank: int) -> Flat:
        x = drawn(rank)
        x.segment(1)[2] = bad if rank == 1 else 0.0
        return x

    for total in formed(3, vector_of):
        assert total.segment(1).isnan().all() and total.segment(0).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64])
def test_of_other_numbers(dtype: torch.dtype) -> None:
    """Small ones are summed as float32 and rounded once; complex ones are twice as many real ones."""
    layout = Layout((Segment("x", (9,), dtype, 0, 0),), (Part(9, dtype, torch.device("cpu")),), 0)

    def vector_of(rank: int) -> Flat:
        draw = torch.Generator().manual_seed(rank)
        return Flat([torch.randn(9, generator=draw, dtype=dtype)], layout)

    sums = formed(3, vector_of)
    reals = [vector_of(rank).parts[0] for rank in range(3)]
    wanted = plain([torch.view_as_real(x) if dtype.is_complex else x for x in reals])
    wanted = torch.view_as_complex(wanted.view(9, 2)) if dtype.is_complex else wanted
    tolerance = {"rtol": 2**-8, "atol": 1e-6} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(sums[0].parts[0], wanted.to(dtype), **tolerance)
    assert all(torch.equal(other.parts[0], sums[0].parts[0]) for other in sums)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_bytes_on_the_wire_are_those_stated(size: int) -> None:
    def task(wire: Wire) -> tuple[int, int]:
        meter = Meter()
        reducer = Adasum(LAYOUT, Metered(wire, meter))
        reducer.start(drawn(wire.rank)).wait()
        return sum(meter.bytes_out.values()), reducer.wire_bytes(wire.size)

    for sent, stated in VirtualWorld(size, timeout=30.0).run(task):
        assert sent == stated


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_tree_of_messages_is_the_one_of_exchanges(size: int) -> None:
    """Also when it is formed anew after a death, in whatever order messages arrived."""

    def task(wire: Wire) -> Flat:
        reducer = Adasum(LAYOUT, wire)
        ranks = [*range(1, size), 0]
        messages = [reducer.message(drawn(rank)) for rank in ranks]
        return reducer.sum_of(messages, ranks, [0] * size, Flat.zeros(LAYOUT))

    anew, exchanged = VirtualWorld(size).run(task)[0], formed(size, drawn)[0]
    for x, y in zip(anew.parts, exchanged.parts, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


def test_a_part_is_summed_again_with_its_header() -> None:
    def task(wire: Wire) -> Tensor:
        reducer, last = Adasum(LAYOUT, wire), len(LAYOUT.parts) - 1
        reducer.start(drawn(wire.rank)).wait()
        return reducer.again(last, drawn(wire.rank + 7).parts[last]).wait()

    parts, wanted = VirtualWorld(3).run(task), formed(3, lambda rank: drawn(rank + 7))
    assert all(torch.equal(x, wanted[0].parts[-1]) for x in parts)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_equal_workers_train_as_one_also_when_some_have_ended(size: int) -> None:
    """In the place of a mean, whoever still gives to it; the others give zeros."""

    @joined
    def live(world: quorate.World) -> Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 3)
        plain: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer: Any = quorate.distribute(plain, model, reduce="adasum") if world.size > 1 else plain
        for step in range(6 if world.rank == 0 else 4):
            optimizer.zero_grad()
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
            model(x).square().mean().backward()
            optimizer.step()
        if world.size > 1:
            optimizer.finish()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    alone = VirtualWorld(1).run(live)[0]
    for parameters in VirtualWorld(size, timeout=30.0).run(live):
        torch.testing.assert_close(parameters, alone, rtol=1e-5, atol=1e-6)


def test_a_worker_that_hands_in_something_else_is_named_and_a_death_ends_sums() -> None:
    def odd(wire: Wire) -> None:
        layout = layout_of([("x", torch.zeros(8 if wire.rank < 2 else 6))])
        Adasum(layout, wire).start(Flat.zeros(layout)).wait()

    seen = VirtualWorld(3, timeout=30.0).outcomes(odd)[0].error
    assert isinstance(seen, Mismatch) and "rank 2" in str(seen)

    def dies(wire: Wire) -> tuple[int, ...]:
        if wire.rank == 1:
            wire.crash()
        with pytest.raises(PeerFailed) as seen:
            Adasum(LAYOUT, wire).start(drawn(wire.rank)).wait()
        return seen.value.ranks

    fates = VirtualWorld(3, timeout=30.0).outcomes(dies)
    assert fates[0].result == fates[2].result == (1,)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"compress": "half"}, 'reduce="adasum" needs gradients as they are'),
        ({"compress": "power-sgd"}, 'reduce="adasum" needs gradients as they are'),
    ],
)
def test_a_codec_beside_it_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        check(Combination(reduction=reduction_of({"reduce": "adasum", **settings})))


def test_weights_are_refused() -> None:
    with pytest.raises(ConfigurationError, match='weight="examples" weighs means, and reduce="adasum" forms none'):
        check(Combination(weight="examples", reduction=reduction_of({"reduce": "adasum"})))
