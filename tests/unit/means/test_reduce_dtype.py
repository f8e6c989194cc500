"""Gradients of bfloat16 parameters that are summed in bfloat16: their bytes, their rounding, and what it goes with."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.wire.current import here
from quorate.wire.real.wire import RealWire
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.counted_world import CountedWorld
from tests.support.joined import joined
from tests.support.processes import run_real_world

WIDTH = 200


def model_of(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)).to(dtype)


def stepped(settings: dict[str, Any], steps: int, world: Any) -> tuple[Tensor, Tensor]:
    """The first mean gradient, and the parameters at the end."""
    model = model_of(torch.bfloat16)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, **settings)
    first = torch.zeros(0)
    for step in range(steps):
        optimizer.zero_grad()
        draw = torch.Generator().manual_seed(10 * step + world.rank)
        model(torch.randn(8, WIDTH, generator=draw).bfloat16()).float().square().mean().backward()
        if not step:
            first = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).clone()
        optimizer.step()
    optimizer.finish()
    return first, torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def virtual(settings: dict[str, Any], steps: int = 3) -> tuple[list[tuple[Tensor, Tensor]], float]:
    world = CountedWorld(2, network=Network(hosts=range(2)))
    ends = world.run(joined(partial(stepped, settings, steps)))
    return ends, sum(world.traffic.out_of_hosts().values())


def test_half_the_bytes_and_the_same_numbers_but_for_rounding() -> None:
    settings = {"reduce_dtype": "bfloat16"}
    (wide, many), (narrow, few) = virtual({}), virtual(settings)
    assert 0.45 < (few - virtual(settings, 1)[1]) / (many - virtual({}, 1)[1]) < 0.6  # of two steps
    for (first, end), (wanted, _) in zip(narrow, wide, strict=True):
        torch.testing.assert_close(first, wanted, rtol=2**-7, atol=1e-4)
        assert torch.equal(end, narrow[0][1])


def test_float32_is_the_default() -> None:
    (found, _), (wanted, _) = virtual({"reduce_dtype": "float32"}), virtual({})
    assert torch.equal(found[0][1], wanted[0][1])


@pytest.mark.parametrize(
    ("strategy", "settings", "sentence"),
    [
        ("local-sgd", {}, "cannot be combined with local-sgd"),
        ("quorum", {}, "cannot be combined with quorum"),
        ("all-reduce", {"compress": "half"}, 'leave out compress="half"'),
        ("all-reduce", {"reduce": "ring"}, 'reduce="ring"'),
    ],
)
def test_what_it_does_not_go_with(strategy: str, settings: dict[str, Any], sentence: str) -> None:
    def task(world: Any) -> None:
        model = model_of(torch.bfloat16)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ConfigurationError, match=sentence):
            quorate.distribute(plain, model, strategy, reduce_dtype="bfloat16", **settings)

    VirtualWorld(2).run(joined(task))


def by_gloo(settings: dict[str, Any], world: Any) -> tuple[Tensor, set[str]]:
    """The parameters after some steps, and the dtypes in which a backend sums large tensors."""
    assert isinstance(here().wire, RealWire)
    seen = set[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RealWire, "shares_memory", False)
        launch = RealWire._launch

        def noted(wire: RealWire, operation: str, start: Any, x: Tensor, moved: Tensor) -> Any:
            if operation.startswith("all_reduce") and moved.numel() > WIDTH * WIDTH:
                seen.add(str(moved.dtype).removeprefix("torch."))
            return launch(wire, operation, start, x, moved)

        patch.setattr(RealWire, "_launch", noted)
        return stepped(settings, 3, world)[1], seen


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_backend_sums_in_the_dtype(dtype: str) -> None:
    first, second = run_real_world(2, partial(by_gloo, {"reduce_dtype": dtype}))
    assert torch.equal(first[0], second[0])
    assert first[1] == {dtype}
