"""A contrastive loss over the features of all workers is that of one process with the joined batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

WIDE = torch.float64


def towers() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleList([nn.Linear(5, 3), nn.Linear(4, 3)]).to(WIDE)


def pairs(count: int = 12) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(count, 5, dtype=WIDE, generator=draw), torch.randn(count, 4, dtype=WIDE, generator=draw)


def loss_of(images: Tensor, texts: Tensor, all_images: Tensor, all_texts: Tensor, own: Tensor) -> Tensor:
    entropy = nn.functional.cross_entropy
    return (entropy(images @ all_texts.T, own) + entropy(texts @ all_images.T, own)) / 2


def alone() -> list[Tensor]:
    model: Any = towers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    images, texts = pairs()
    for _ in range(3):
        i, t = model[0](images), model[1](texts)
        loss_of(i, t, i, t, torch.arange(len(i))).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in model.parameters()]


def together(world: quorate.World, cuts: list[int], strategy: Any = "all-reduce", **settings: Any) -> list[Tensor]:
    model: Any = towers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = quorate.distribute(optimizer, model, strategy, **settings)
    images, texts = (each.split(cuts)[world.rank] for each in pairs())
    loader = quorate.loader(torch.ones(100, 1), batch_size=len(images)) if "weight" in settings else None
    batches: Iterator[Any] = iter(loader or [])
    for _ in range(3):
        next(batches, None)
        i, t = model[0](images), model[1](texts)
        of_images, of_texts = quorate.gathered(i), quorate.gathered(t)
        loss_of(i, t, of_images.features, of_texts.features, of_texts.own).backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.finish()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("cuts", [[6, 6], [4, 4, 4]])
def test_it_is_that_of_one_process(cuts: list[int]) -> None:
    for parameters in VirtualWorld(len(cuts)).run(joined(lambda world: together(world, cuts))):
        torch.testing.assert_close(parameters, alone(), rtol=1e-9, atol=1e-12)


def test_unequal_batches_count_by_their_examples() -> None:
    for parameters in VirtualWorld(3).run(joined(lambda world: together(world, [7, 2, 3], weight="examples"))):
        torch.testing.assert_close(parameters, alone(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("strategy", ["eager-solo", "d-psgd", "parameter-server"])
def test_workers_that_do_not_wait_see_their_own(strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    def live(world: quorate.World) -> list[Any]:
        together(world, [6, 6], strategy)
        seen = quorate.gathered(torch.full((2, 1), float(world.rank)))
        return [seen.features.tolist(), seen.own.tolist(), seen.ranks.tolist()]

    assert VirtualWorld(2).run(joined(live)) == [[[[0.0], [0.0]], [0, 1], [0, 0]], [[[1.0], [1.0]], [0, 1], [1, 1]]]
    said = f"under {strategy} workers do not wait for each other, so quorate.gathered() returns the features of this"
    assert capsys.readouterr().err.count(said) == 1


def test_rows_say_whose_they_are() -> None:
    def live(world: quorate.World) -> list[Any]:
        seen = quorate.gathered(torch.full((world.rank + 1, 2), float(world.rank)))
        return [seen.features[:, 0].tolist(), seen.own.tolist(), seen.ranks.tolist()]

    whole = [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]
    assert VirtualWorld(3).run(joined(live)) == [
        [whole, [0], [0, 1, 1, 2, 2, 2]],
        [whole, [1, 2], [0, 1, 1, 2, 2, 2]],
        [whole, [3, 4, 5], [0, 1, 1, 2, 2, 2]],
    ]


def test_rows_that_are_not_alike_are_refused_everywhere() -> None:
    def live(world: quorate.World) -> str:
        with pytest.raises(ConfigurationError) as refusal:
            quorate.gathered(torch.ones(2, 3 + world.rank))
        return str(refusal.value)

    first, second = VirtualWorld(2).run(joined(live))
    assert first == second
    assert "torch.float32 of the shape (2, 4) on rank 1 and torch.float32 of the shape (2, 3) on rank 0" in first


@pytest.mark.parametrize("features", [torch.tensor(1.0), [1.0], torch.eye(2).to_sparse()])
def test_what_has_no_rows_is_refused(features: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"takes a dense tensor of the shape \(n, ...\)"):
        quorate.gathered(features)
