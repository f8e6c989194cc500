"""`auto`: what it proposes, by measures of known runs, and that it changes at a pause and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.launch.worker.world import World
from quorate.strategies.parts.proposal import ALL_REDUCE, LOCAL, Seen, costs, propose
from quorate.wire import current
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

RULE: dict[str, Any] = {"local_steps": 8, "lateness": 0.1, "margin": 0.1}
EVEN = [[1.0, 1.0]] * 4
SLOW, FAST = Network(bandwidth=1e6), Network(bandwidth=1e15)


def seen(**changed: Any) -> Seen:
    return Seen(**{"work": EVEN, "exchange": 0.01, "step": 1.01, "noise": 10.0, **changed})


def test_where_nothing_is_waited_for_it_stays() -> None:
    assert propose(seen(), ALL_REDUCE, **RULE).strategy == ALL_REDUCE


def test_where_the_network_takes_most_of_a_step_it_is_local_steps() -> None:
    proposal = propose(seen(exchange=3.0, step=4.0), ALL_REDUCE, **RULE)
    assert proposal.strategy == "local-sgd:sync_every=8"
    assert proposal.why.startswith("a step takes 4 s, of which workers compute 1 to 1 s and exchange 3 s; the noise is")


def test_where_one_worker_is_far_slower_it_is_a_quorum() -> None:
    work = [[1.0], [1.0], [1.0], [10.0]]
    assert propose(seen(work=work, step=10.0), ALL_REDUCE, **RULE).strategy.startswith("quorum:wait_for=")


def test_local_steps_cost_more_where_gradients_have_less_noise() -> None:
    late, early = (costs(seen(noise=noise), local_steps=8, lateness=0.1)[LOCAL] for noise in (0.0, math.inf))
    assert late == pytest.approx(early * (1 + 0.1 * 3.5 * 3 / 4))
    assert early == pytest.approx((1.0 + 0.01 / 8) / 4)


def test_it_goes_back_where_local_steps_do_not_pay() -> None:
    assert propose(seen(work=[[2.0]] * 4, step=1.5), LOCAL, **RULE).strategy == ALL_REDUCE


def run(
    network: Network, work: Callable[[int, int], float], size: int = 3, **settings: Any
) -> list[list[tuple[torch.Tensor, bool]]]:
    """Each worker's parameters after each pause, and whether its steps were local then."""

    def task(world: World) -> list[tuple[torch.Tensor, bool]]:
        torch.manual_seed(0)
        model = nn.Linear(64, 64)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        optimizer = quorate.distribute(optimizer, model, "auto", **settings)
        draws, clock, states = torch.Generator().manual_seed(world.rank), current.here().wire.clock, []
        for step in range(96):
            clock.sleep(work(world.rank, step))
            model(torch.randn(8, 64, generator=draws)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 24 == 23:
                with world.evaluate():
                    x = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
                states.append((x, optimizer.__dict__["_quorate_worker"].state.is_local))
        return states

    return VirtualWorld(size, network=network, timeout=30.0).run(joined(task))


def equal(states: list[list[tuple[torch.Tensor, bool]]]) -> list[bool]:
    """Whether steps were local after each pause, at which all workers have equal parameters and agree on it."""
    for of_pause in zip(*states, strict=True):
        assert all(torch.equal(x, of_pause[0][0]) and is_local == of_pause[0][1] for x, is_local in of_pause)
    return [is_local for _, is_local in states[0]]


def test_without_act_it_only_proposes_and_trains_as_all_reduce(capsys: pytest.CaptureFixture[str]) -> None:
    states = run(SLOW, lambda rank, step: 0.01)
    assert equal(states) == [False] * 4
    said = capsys.readouterr().err
    assert "proposed strategy is local-sgd:sync_every=8: a step takes" in said


def test_on_a_fast_network_it_proposes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    states = run(FAST, lambda rank, step: 0.01, act=True)
    assert equal(states) == [False] * 4
    assert "strategy is" not in capsys.readouterr().err


def test_with_act_it_changes_at_a_pause_and_all_stay_equal_at_pauses(capsys: pytest.CaptureFixture[str]) -> None:
    states = run(SLOW, lambda rank, step: 0.01, act=True)
    assert equal(states) == [True] * 4
    assert "quorate: from update 25 on, strategy is local-sgd:sync_every=8: a step takes" in capsys.readouterr().err


def test_with_act_it_changes_back_where_steps_have_become_slow(capsys: pytest.CaptureFixture[str]) -> None:
    """A fault of the machine in the local phase, which makes a local step slower than a synchronous one was."""
    states = run(SLOW, lambda rank, step: 0.2 if 24 <= step < 48 else 0.01, act=True)
    assert equal(states)[:2] == [True, False]
    assert "strategy is all-reduce: a step takes" in capsys.readouterr().err


def test_a_quorum_is_only_proposed(capsys: pytest.CaptureFixture[str]) -> None:
    states = run(FAST, lambda rank, step: 1.0 if rank == 2 else 0.01, act=True)
    assert equal(states) == [False] * 4
    assert "proposed strategy is quorum:wait_for=" in capsys.readouterr().err


@pytest.mark.parametrize("settings", [{"sync_every": "30s"}, {"margin": 1.0}, {"lateness": -1.0}])
def test_settings_are_checked(settings: dict[str, Any]) -> None:
    from quorate.strategies.auto import Auto

    with pytest.raises(ValueError, match="sync_every must be a number of steps, lateness at least 0"):
        Auto(**settings)
