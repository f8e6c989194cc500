"""Parameters on servers, among real processes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import PeerFailed
from quorate.launch.worker.world import World
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.processes import outcomes_real_world, run_real_world


def trained(name: str, settings: dict[str, Any], world: World) -> list[Tensor]:
    """Parameters after a training in which one worker is late now and then, with a rest in it."""
    torch.manual_seed(world.rank)
    numbers = torch.Generator().manual_seed(10 + world.rank)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.02)
    quorate.distribute(optimizer, model, name, **settings)
    for step in range(10):
        optimizer.zero_grad()
        model(torch.randn(4, 4, generator=numbers)).square().mean().backward()
        world.wire.clock.sleep(0.02 * (step % 3 == world.rank))
        optimizer.step()
        if step == 5:
            with world.evaluate():
                pass
    optimizer.finish()
    return [p.detach().clone() for p in model.parameters()]


def virtual(name: str, settings: dict[str, Any]) -> list[Tensor]:
    return VirtualWorld(3, seed=1).run(joined(lambda world: trained(name, settings, world)))[0]


IN_ORDER: dict[str, tuple[str, dict[str, Any]]] = {
    **{mode: ("parameter-server", {"mode": mode, "in_order": True}) for mode in ("async", "bounded", "sync")},
    "elastic": ("easgd", {"sync_every": 2, "in_order": True}),
}


@pytest.mark.parametrize("case", IN_ORDER)
def test_in_order_real_runs_are_the_same_to_the_bit(case: str) -> None:
    name, settings = IN_ORDER[case]
    first, again = (run_real_world(3, partial(trained, name, settings))[0] for _ in range(2))
    expected = virtual(name, settings)
    for x, y, z in zip(first, again, expected, strict=True):
        assert torch.equal(x, y)
        assert torch.equal(x, z)


AS_THEY_COME: list[tuple[str, dict[str, Any]]] = [
    ("parameter-server", {"mode": "async"}),
    ("parameter-server", {"mode": "bounded", "overlap": True}),
    ("parameter-server", {"backup": 1}),
    ("easgd", {"sync_every": 2, "overlap": True}),
    ("eamsgd", {"sync_every": 2, "servers": 1}),
]


@pytest.mark.parametrize(("name", "settings"), AS_THEY_COME)
def test_workers_end_with_what_the_servers_have(name: str, settings: dict[str, Any]) -> None:
    ends = run_real_world(3, partial(trained, name, settings))
    assert all(torch.equal(x, y) for end in ends for x, y in zip(end, ends[0], strict=True))


def test_sync_is_all_reduce() -> None:
    served = run_real_world(2, partial(trained, "parameter-server", {}))[0]
    for x, y in zip(served, run_real_world(2, partial(trained, "all-reduce", {}))[0], strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


def dying(dead: int, world: World, **settings: Any) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05)
    given = {"servers": 1, "mode": "bounded", "on_death": "continue", **settings}
    quorate.distribute(optimizer, model, "parameter-server", **given)
    for step in range(30):
        if (world.rank, step) == (dead, 5):
            world.wire.crash()
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        world.wire.clock.sleep(0.02)
        optimizer.step()
    optimizer.finish()
    return [p.detach().clone() for p in model.parameters()]


def test_the_others_go_on_without_a_worker_that_is_no_server() -> None:
    first, dead, last = outcomes_real_world(3, partial(dying, 1))
    assert dead.exit_code != 0
    assert first.result is not None
    assert last.result is not None
    assert all(torch.equal(x, y) for x, y in zip(first.result, last.result, strict=True))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_others_go_on_without_a_server_whose_part_is_on_another(mode: str) -> None:
    dead, *others = outcomes_real_world(3, partial(dying, 0, mode=mode, servers="all", replication=2))
    assert dead.exit_code != 0
    first, second = (one.result for one in others)
    assert first is not None and second is not None, [one.error_message for one in others]
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_without_the_server_all_stop_in_a_sentence() -> None:
    _, *others = outcomes_real_world(3, partial(dying, 0))
    for one in others:
        assert one.error_type is PeerFailed
        assert "it was a server, and all parameters were on it alone" in one.error_message
