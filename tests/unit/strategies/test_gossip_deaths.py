"""Workers that die at any point under gossip: the others go on, on a graph of their own, and every mass is known."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.faulty import Fault
from tests.support.gossip import RATE
from tests.support.gossip_deaths import NAMES, check, planned, trained
from tests.support.scene import Scene, Trainer


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_random_deaths(seed: int, name: str) -> None:
    plan = planned(10 * seed + NAMES.index(name), name)
    check(name, plan["size"], trained(**plan))


@pytest.mark.parametrize("name", NAMES)
def test_the_others_are_soon_at_work_without_it(name: str) -> None:
    found = trained(name, 4, {1: 20}, steps=20, settings={"sync_every": 1} if name == "noloco" else {})
    assert sorted(found) == [0, 2, 3]
    for told in found.values():
        halt = max(late - early for early, late in itertools.pairwise(told.trainer.times))
        assert halt < 0.1, "until it is noticed, 0.05 s pass"
        if name != "ad-psgd":
            assert told.members[0] == (0, 1, 2, 3)
            assert told.members[told.near.round] == (0, 2, 3)
    check(name, 4, found)


def test_what_is_lost_with_the_dead_is_counted_from_when_all_rested_last(tmp_path: Path) -> None:
    """On a graph that is not regular masses differ; rank 3 dies after a rest, and so does rank 1 after another one."""
    graph = tmp_path / "graph"
    graph.write_text("0 -> 1\n1 -> 2\n2 -> 3\n3 -> 0\n0 -> 2\n0 -> 3\n")
    settings: Any = {"topology": f"file:path={graph}", "patience": 0.03}
    pause = lambda rank, step: 0.01 + 0.002 * rank  # noqa: E731
    found = trained("sgp", 4, {3: 60, 1: 110}, steps=30, rests=(5, 14, 25), pause=pause, **settings)
    assert sorted(found) == [0, 2]
    assert {1, 3} == set(found[0].near.lost_with)
    assert all(abs(mass - 1.0) > 0.1 for mass in found[0].near.lost_with.values())
    check("sgp", 4, found)


@pytest.mark.parametrize("at", [4, 5, 6])
def test_what_the_dead_had_given_and_was_lost_is_counted_once(at: int) -> None:
    settings: Any = {"topology": "one-peer-exponential", "patience": 0.05}
    lose = [Fault("drop", rank=1, at=at, operation="send")]
    found = trained("sgp", 4, {1: 40}, steps=16, drops=lose, **settings)
    assert sorted(found) == [0, 2, 3]
    check("sgp", 4, found)


@pytest.mark.parametrize("name", ["d-psgd", "d2"])
def test_the_mean_of_those_that_are_left_moves_by_the_mean_of_their_gradients(name: str) -> None:
    found = trained(name, 5, {2: 25}, steps=22, settings={} if name == "d2" else {"overlap": False})
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
        found = trained("d-psgd", 4, {1: 20, 3: 24}, steps=30, still_from=12, topology=topology)
        assert sorted(found) == [0, 2]
        apart[topology] = float((found[0].own - found[2].own).norm())
        assert torch.allclose(found[0].end, (found[0].own + found[2].own) / 2, atol=1e-6)
    assert apart["ring"] < 1e-5
    assert apart[f"file:path={graph}"] > 1e-2


def test_relay_sums_among_those_that_are_left() -> None:
    """With gradients of zero all come to the mean of what they had, when nothing of the dead is relayed any more."""
    found = trained("relay", 5, {1: 20}, steps=40, still_from=10, topology="path")
    assert len(found) == 4
    last = [told.replicas[-1] for told in found.values()]
    assert all(torch.allclose(one, last[0], atol=1e-5) for one in last)


@pytest.mark.parametrize("name", ["d-psgd", "sgp", "d2", "noloco"])
def test_a_checkpoint_without_the_dead_is_gone_on_from(name: str, tmp_path: Path) -> None:
    def look(trainer: Trainer) -> tuple[int | None, list[float]]:
        return trainer.began, trainer.parameters.tolist()

    loss = lambda trainer: (trainer.model(torch.ones(4, 3)) + trainer.rank).square().mean()  # noqa: E731
    scene = Scene(name, model=(3, 1), seed=1, loss=loss, steps=12, pause=0.02, root=tmp_path, loads=True)
    scene = scene.but(settings={"sync_every": 2}) if name == "noloco" else scene
    found = scene.but(dies={1: 2}, saves=[9]).survivors(look)
    assert found[0] == found[2]
    ends = set()
    for size in (2, 3):
        ended = scene.but(size=size).run(look)
        assert [began for began, _ in ended] == [9] * size
        assert all(one == ended[0] for one in ended)
        ends.add(str(ended[0]))
    assert len(ends) == 2


def test_what_was_lost_with_the_dead_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    found = trained("sgp", 3, {0: 22}, rests=(9,))
    assert sorted(found) == [1, 2]
    said, weight = capsys.readouterr().err.splitlines(), found[1].near.lost_with[0]
    assert said == [
        f"quorate: with rank 0, which has died, a weight of {weight:.3g} was lost; the mean is over what remains"
    ]
