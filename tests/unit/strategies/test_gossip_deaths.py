"""Workers that die at any point under gossip: the others go on, on a graph of their own, and every mass is known."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.checkpoint.participants import checkpoint_context
from quorate.wire import current
from quorate.wire.faulty import Fault
from quorate.wire.virtual.world import VirtualWorld
from tests.support.gossip import RATE, flat
from tests.support.gossip_deaths import NAMES, Plan, check, planned
from tests.support.joined import joined


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_random_deaths(seed: int, name: str) -> None:
    plan = planned(10 * seed + NAMES.index(name), name)
    check(plan, plan.run())


@pytest.mark.parametrize("name", NAMES)
def test_the_others_are_soon_at_work_without_it(name: str) -> None:
    plan = Plan(size=4, deaths={1: 20}, settings={"strategy": name}, steps=20)
    found = plan.run()
    assert sorted(found) == [0, 2, 3]
    for told in found.values():
        halt = max(late - early for early, late in itertools.pairwise(told.times))
        assert halt < 0.1, "until it is noticed, 0.05 s pass"
        if name != "ad-psgd":
            assert told.members[0] == (0, 1, 2, 3)
            assert told.members[told.round] == (0, 2, 3)
    check(plan, found)


def test_what_is_lost_with_the_dead_is_counted_from_when_all_rested_last(tmp_path: Path) -> None:
    """On a graph that is not regular masses differ; rank 3 dies after a rest, and so does rank 1 after another one."""
    graph = tmp_path / "graph"
    graph.write_text("0 -> 1\n1 -> 2\n2 -> 3\n3 -> 0\n0 -> 2\n0 -> 3\n")
    settings = {"strategy": "sgp", "topology": f"file:path={graph}", "patience": 0.03}
    plan = Plan(size=4, deaths={3: 60, 1: 110}, settings=settings, steps=30, evaluates=(5, 14, 25))
    plan.pauses = lambda rank, step: 0.01 + 0.002 * rank
    found = plan.run()
    assert sorted(found) == [0, 2]
    assert {1, 3} == set(found[0].lost_with)
    assert all(abs(mass - 1.0) > 0.1 for mass in found[0].lost_with.values())
    check(plan, found)


@pytest.mark.parametrize("at", [4, 5, 6])
def test_what_the_dead_had_given_and_was_lost_is_counted_once(at: int) -> None:
    settings = {"strategy": "sgp", "topology": "one-peer-exponential", "patience": 0.05}
    plan = Plan(size=4, deaths={1: 40}, settings=settings, steps=16)
    plan.drops = [Fault("drop", rank=1, at=at, operation="send")]
    found = plan.run()
    assert sorted(found) == [0, 2, 3]
    check(plan, found)


@pytest.mark.parametrize("name", ["d-psgd", "d2"])
def test_the_mean_of_those_that_are_left_moves_by_the_mean_of_their_gradients(name: str) -> None:
    plan = Plan(size=5, deaths={2: 25}, settings={"strategy": name, "overlap": False}, steps=22)
    if name == "d2":
        del plan.settings["overlap"]
    found = plan.run()
    assert len(found) == 4
    whole = next(number for number, members in sorted(found[0].members.items()) if len(members) == 4)
    assert 2 < whole < 18
    replicas = sum(torch.stack(told.replicas) for told in found.values()) / 4
    gradients = sum(torch.stack(told.gradients) for told in found.values()) / 4
    moved, expected = replicas.diff(dim=0), -RATE * gradients[1:]
    assert torch.allclose(moved[whole + 1 :], expected[whole + 1 :], atol=1e-6)
    assert not torch.allclose(moved[:whole], expected[:whole], atol=1e-4), "it takes away what it held"


def test_a_ring_is_closed_over_the_dead(tmp_path: Path) -> None:
    """Ranks 1 and 3 of four die: 0 and 2 have no edge left, but on a ring of their own; a file knows no other ring."""
    graph = tmp_path / "ring"
    graph.write_text("0 1\n1 2\n2 3\n3 0\n")
    apart = {}
    for topology in ("ring", f"file:path={graph}"):
        plan = Plan(size=4, deaths={1: 20, 3: 24}, settings={"strategy": "d-psgd", "topology": topology}, steps=30)
        plan.still_from = 12
        found = plan.run()
        assert sorted(found) == [0, 2]
        apart[topology] = float((found[0].own - found[2].own).norm())
        assert torch.allclose(found[0].end, (found[0].own + found[2].own) / 2, atol=1e-6)
    assert apart["ring"] < 1e-5
    assert apart[f"file:path={graph}"] > 1e-2


def test_relay_sums_among_those_that_are_left() -> None:
    """With gradients of zero all come to the mean of what they had, when nothing of the dead is relayed any more."""
    plan = Plan(size=5, deaths={1: 20}, settings={"strategy": "relay", "topology": "path"}, steps=40, still_from=10)
    found = plan.run()
    assert len(found) == 4
    last = [told.replicas[-1] for told in found.values()]
    assert all(torch.allclose(one, last[0], atol=1e-5) for one in last)


@pytest.mark.parametrize("name", ["d-psgd", "sgp", "d2"])
def test_a_checkpoint_without_the_dead_is_gone_on_from(name: str, tmp_path: Path) -> None:
    def live(world: quorate.World, dies: bool) -> tuple[int | None, list[float]]:
        checkpoint_context(current.here()).root = tmp_path
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 1)
        plain = torch.optim.SGD(model.parameters(), lr=RATE)
        optimizer: Any = quorate.distribute(plain, model, name)
        began = quorate.load()
        for step in range((began or 0) + 1, 13):
            if dies and step == 3 and world.rank == 1:
                world.wire.crash()
            world.wire.clock.sleep(0.02)
            optimizer.zero_grad()
            (model(torch.ones(4, 3)) + world.rank).square().mean().backward()
            optimizer.step()
            if step == 9 and dies:
                quorate.save()
        optimizer.finish()
        return began, flat(model.parameters()).tolist()

    outcomes = VirtualWorld(3, timeout=60.0).outcomes(joined(lambda world: live(world, True)))
    assert [one.is_crashed for one in outcomes] == [False, True, False]
    assert outcomes[0].result == outcomes[2].result is not None
    ends = set()
    for size in (2, 3):
        found = VirtualWorld(size, timeout=60.0).run(joined(lambda world: live(world, False)))
        assert [began for began, _ in found] == [9] * size
        assert all(one == found[0] for one in found)
        ends.add(str(found[0]))
    assert len(ends) == 2


def test_what_was_lost_with_the_dead_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan(size=3, deaths={0: 22}, settings={"strategy": "sgp"}, evaluates=(9,))
    found = plan.run()
    assert sorted(found) == [1, 2]
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"quorate: with rank 0, which has died, a weight of {found[1].lost_with[0]:.3g} was lost; the mean is over "
        "what remains"
    ]
