"""Tables by rows in the virtual world: outputs, gradients and bytes against one table, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.core.axes import Axes, rows_of
from quorate.core.errors import ConfigurationError
from quorate.sharding.by_rows import Lookups, check_tables, tables_in
from quorate.sharding.experts import Exchange
from quorate.sharding.traffic import Traffic
from quorate.wire.metered import Meter, Metered
from quorate.wire.virtual.world import VirtualWorld

ROWS, WIDTH = 11, 3


def layer(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "embedding":
        return nn.Embedding(ROWS, WIDTH, padding_idx=2, sparse=True, dtype=torch.float64)
    return nn.EmbeddingBag(ROWS, WIDTH, mode=kind, padding_idx=2, sparse=True, dtype=torch.float64)


def drawn(rank: int) -> Tensor:
    """The bags of one worker; rank 1 has none."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, ROWS, (0 if rank == 1 else 4, 3), generator=generator)


def loss_of(output: Tensor, rank: int) -> Tensor:
    return (output.square() * (1 + rank)).sum()


def looked_up(kind: str, world: Any) -> tuple[Tensor, Tensor, Tensor, int]:
    """The output, the gradients of this worker's rows and their indices, and the bytes sent."""
    module, meter, rank = layer(kind), Meter(), world.rank
    own = rows_of(ROWS, world.size, rank)
    module.weight = nn.Parameter(module.weight.detach()[own.start : own.stop].clone())
    Lookups("table", Exchange(Metered(world, meter), Traffic())).hook(module)
    weight = module.weight
    for _ in range(2):
        output = module(drawn(rank))
        loss_of(output, rank).backward()
    assert module.weight is weight
    assert (module.padding_idx, module.sparse) == (2, True)
    gradient = weight.grad.coalesce()
    return output.detach(), gradient.values() / 2, gradient.indices()[0] + own.start, meter.total_out // 2


@pytest.mark.parametrize("kind", ["embedding", "sum", "mean"])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_rows_and_their_gradients_are_those_of_one_table(size: int, kind: str) -> None:
    whole = layer(kind)
    outputs = [whole(drawn(rank)) for rank in range(size)]
    losses: Any = sum(loss_of(output, rank) for rank, output in enumerate(outputs))
    (losses / size).backward()
    expected = whole.weight.grad.coalesce()
    results = VirtualWorld(size).run(lambda world: looked_up(kind, world))
    for (output, *_), reference in zip(results, outputs, strict=True):
        torch.testing.assert_close(output, reference.detach(), rtol=0, atol=0)
    indices = torch.cat([result[2] for result in results])
    assert indices.tolist() == expected.indices()[0].tolist()
    torch.testing.assert_close(torch.cat([result[1] for result in results]), expected.values(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", [2, 3])
def test_bytes_are_those_of_the_rows_that_others_hold(size: int) -> None:
    results = VirtualWorld(size).run(lambda world: looked_up("embedding", world))
    owner = [next(rank for rank in range(size) if row in rows_of(ROWS, size, rank)) for row in range(ROWS)]
    needed = [[owner[row] for row in drawn(rank).unique().tolist()] for rank in range(size)]
    for rank, (*_, nbytes) in enumerate(results):
        asked = sum(place != rank for place in needed[rank])
        lent = sum(places.count(rank) for other, places in enumerate(needed) if other != rank)
        assert nbytes == asked * 4 + lent * WIDTH * 8 + asked * WIDTH * 8


def test_rows_outside_the_table_are_named() -> None:
    def ask(row: int, world: Any) -> None:
        module = layer("embedding")
        Lookups("table", Exchange(world, Traffic())).hook(module)
        module(torch.tensor([1, row]))

    for row in (-1, ROWS):
        with pytest.raises(IndexError, match=f"table has {ROWS} rows, and was asked for row {row}"):
            VirtualWorld(1).run(lambda world, row=row: ask(row, world))


def test_tables_that_are_divided() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(4, 3, sparse=True), "dense": nn.Embedding(4, 3)})
    model["tied"], model["head"] = nn.Embedding(4, 3, sparse=True), nn.Linear(3, 4)
    model["head"].weight = model["tied"].weight
    assert list(tables_in(model)) == ["words"]
    check_tables(["words"], Axes(2, 2), None, model)
    for axes, words in ((Axes(1, 1, 1, 2), "in stages"), (Axes(1, 2, 2), "along shards and tensor at once")):
        with pytest.raises(ConfigurationError, match=words):
            check_tables(["words"], axes, None, model)
