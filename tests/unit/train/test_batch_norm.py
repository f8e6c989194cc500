"""Batch norm over workers is that of one process with all batches; ghost batch norm is that of parts of a batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

SIZES = (3, 1, 4, 2)
"""Examples of each worker."""
WIDE = torch.float64


def net(norm: type[nn.Module] = nn.BatchNorm2d, **settings: Any) -> nn.Sequential:
    torch.manual_seed(0)
    last = nn.Linear(4 * 3 * 3, 2)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), norm(4, **settings), nn.Tanh(), nn.Flatten(), last)
    return model.to(WIDE)


def batch(rank: int) -> Tensor:
    draw = torch.Generator().manual_seed(rank)
    return torch.randn(SIZES[rank], 2, 3, 3, generator=draw, dtype=WIDE) * (1 + rank) + rank


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).sin().square().sum()


def one_pass(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The gradient of the input, those of the parameters, the buffers, and outputs in evaluation mode."""
    x = x.requires_grad_()
    loss_of(model, x).backward()
    assert x.grad is not None
    model.eval()
    with torch.no_grad():
        tested = model(torch.ones(2, 2, 3, 3, dtype=WIDE))
    return [x.grad, *(p.grad for p in model.parameters()), *model.buffers(), tested]  # type: ignore[list-item]


def synced(world: quorate.World, group: int | None = None, **settings: Any) -> list[Tensor]:
    return one_pass(quorate.sync_batch_norm(net(**settings), group), batch(world.rank))


def assert_same(results: list[list[Tensor]], ranks: range, wanted: list[Tensor], parameters: int) -> None:
    """The gradients of parameters add up to those of one process; inputs' lie behind one another."""
    inputs = torch.cat([results[rank][0] for rank in ranks])
    torch.testing.assert_close(inputs, wanted[0], rtol=1e-9, atol=1e-10)
    for place in range(1, 1 + parameters):
        total = torch.stack([results[rank][place] for rank in ranks]).sum(0)
        torch.testing.assert_close(total, wanted[place], rtol=1e-9, atol=1e-10)
    for rank in ranks:
        for own, theirs in zip(results[rank][1 + parameters :], wanted[1 + parameters :], strict=True):
            torch.testing.assert_close(own, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("settings", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}])
def test_it_is_that_of_one_process_with_unequal_batches(settings: dict[str, Any]) -> None:
    results = VirtualWorld(4).run(joined(lambda world: synced(world, **settings)))
    wanted = one_pass(net(**settings), torch.cat([batch(rank) for rank in range(4)]))
    assert_same(results, range(4), wanted, len(list(net(**settings).parameters())))


def test_groups_have_statistics_of_their_own() -> None:
    results = VirtualWorld(4).run(joined(lambda world: synced(world, 2)))
    for ranks in (range(2), range(2, 4)):
        assert_same(results, ranks, one_pass(net(), torch.cat([batch(rank) for rank in ranks])), 6)


def test_a_group_of_one_is_left_as_it_is() -> None:
    def live(world: quorate.World) -> type[nn.Module]:
        return type(quorate.sync_batch_norm(net(), group=1)[1])  # type: ignore[index]

    assert VirtualWorld(2).run(joined(live)) == [nn.BatchNorm2d] * 2


def test_modules_stay_what_they_are_and_may_be_copied() -> None:
    def live(world: quorate.World) -> bool:
        plain = net()
        keys, model = list(plain.state_dict()), quorate.sync_batch_norm(plain)
        again = copy.deepcopy(model)
        same = torch.equal(model(batch(world.rank)), again(batch(world.rank)))
        return model is plain and isinstance(plain[1], nn.BatchNorm2d) and list(plain.state_dict()) == keys and same

    assert all(VirtualWorld(2).run(joined(live)))


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm3d])
def test_other_shapes(kind: Any) -> None:
    shape = (2, 3) if kind is nn.BatchNorm1d else (2, 3, 2, 2, 2)
    every = torch.randn(4, *shape, dtype=WIDE, generator=torch.Generator().manual_seed(1))

    def live(world: quorate.World) -> Tensor:
        output: Tensor = quorate.sync_batch_norm(kind(3).to(WIDE))(every[world.rank])
        return output.detach()

    outputs = VirtualWorld(4).run(joined(live))
    torch.testing.assert_close(torch.cat(outputs), kind(3).to(WIDE)(every.flatten(0, 1)))


def test_means_far_from_zero_lose_no_digits() -> None:
    """A variance of 1 at a mean of 10,000, in float32: a difference of squares would have none left."""
    every = 1e4 + torch.randn(2, 64, 1, generator=torch.Generator().manual_seed(3))

    def live(world: quorate.World) -> Tensor:
        output: Tensor = quorate.sync_batch_norm(nn.BatchNorm1d(1))(every[world.rank])
        return output.detach()

    outputs = torch.cat(VirtualWorld(2).run(joined(live)))
    wanted = every.double().flatten(0, 1)
    wanted = (wanted - wanted.mean()) / wanted.var(correction=0).sqrt()
    torch.testing.assert_close(outputs.double(), wanted, rtol=0, atol=2e-3)


def trained(world: quorate.World, strategy: str, steps: int = 4) -> list[Tensor]:
    model = quorate.sync_batch_norm(net())
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, strategy)
    for step in range(steps):
        optimizer.zero_grad()
        (loss_of(model, batch(world.rank) + step) / SIZES[world.rank]).backward()
        optimizer.step()
    optimizer.finish()
    return [x.detach() for x in model.state_dict().values()]


def test_it_trains_as_one_process_does() -> None:
    ends = VirtualWorld(4).run(joined(lambda world: trained(world, "all-reduce")))
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        outputs = model(torch.cat([batch(rank) + step for rank in range(4)])).split(SIZES)
        losses = [out.sin().square().sum() / len(out) for out in outputs]
        torch.stack(losses).mean().backward()
        optimizer.step()
    for end in ends:
        for own, theirs in zip(end, model.state_dict().values(), strict=True):
            torch.testing.assert_close(own, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("strategy", ["eager-solo", "d-psgd"])
def test_strategies_in_which_workers_do_not_all_meet_are_refused(strategy: str) -> None:
    with pytest.raises(ConfigurationError, match=f"each forward pass, and {strategy} does not"):
        VirtualWorld(2).run(joined(lambda world: trained(world, strategy)))


def test_ghost_batch_norm_is_of_parts_and_takes_them_in_one_after_the_other() -> None:
    x = torch.randn(7, 3, dtype=WIDE, generator=torch.Generator().manual_seed(0))
    ghost, plain = quorate.ghost_batch_norm(nn.BatchNorm1d(3).to(WIDE), 2), nn.BatchNorm1d(3).to(WIDE)
    parts = (x[:3], x[3:5], x[5:])
    torch.testing.assert_close(ghost(x), torch.cat([plain(part) for part in parts]))
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ghost.state_dict()[name], value)
    torch.testing.assert_close(ghost.eval()(x), plain.eval()(x))


def refusals(world: quorate.World) -> list[str]:
    sentences = []
    for call in (
        lambda: quorate.sync_batch_norm(nn.Linear(2, 2)),
        lambda: quorate.sync_batch_norm(net(), group=2),
        lambda: quorate.sync_batch_norm([]),  # type: ignore[arg-type]
        lambda: quorate.sync_batch_norm(quorate.sync_batch_norm(net())),
        lambda: quorate.ghost_batch_norm(net(), 1),
        lambda: quorate.sync_batch_norm(),  # type: ignore[call-arg]
    ):
        with pytest.raises(ConfigurationError) as error:
            call()
        sentences.append(str(error.value))
    return sentences


def test_what_is_wrong_is_said() -> None:
    sentences, *_ = VirtualWorld(3).run(joined(refusals))
    said = ["has no batch norm", "divides 3, not 2", "not list", "call it once", "at least 2), not 1", "'model'"]
    assert all(part in sentence for part, sentence in zip(said, sentences, strict=True)), sentences
