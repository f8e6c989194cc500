"""The copies that neighbours keep of each other: equal to the bit at both ends of every edge, whatever happens."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from quorate.wire.faulty import Fault
from quorate.wire.virtual.world import VirtualWorld
from tests.support.compressed_gossip import NAMES, Told, Training, assert_copies_are_equal
from tests.support.gossip import run, speeds
from tests.support.joined import joined
from tests.support.kept_trainings import in_world

QSGD: dict[str, Any] = {"compress": "qsgd", "dense_below": 0}
TOP_K: dict[str, Any] = {"compress": "top-k", "density": 0.1, "dense_below": 0}
CASES = [("choco-sgd", TOP_K), *((name, QSGD) for name in NAMES)]
GRAPHS = ["ring", "complete", "star", "random:degree=3"]


def trained(size: int, plan: Training, *, seed: int = 0, faults: list[Fault] | None = None) -> dict[int, Told]:
    return dict(enumerate(run(size, plan.live, seed=seed, faults=faults or [])))


@pytest.mark.parametrize(("name", "coded"), CASES)
@pytest.mark.seeds(3, 9)
def test_they_are_equal_among_workers_of_any_speed_that_rest_and_end(
    name: str, coded: dict[str, Any], seed: int
) -> None:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5, 8])
    graph = draw.choice(GRAPHS[: 4 if size > 3 else 3])
    lengths = [draw.choice([9, 12]) for _ in range(size)]
    plan = Training(
        settings={"strategy": name, "topology": graph, **coded},
        begins_apart=True,
        evaluates=(4,),
        ends_after=lambda rank: lengths[rank],
        pauses=speeds(draw, size),
    )
    found = trained(size, plan, seed=seed)
    assert assert_copies_are_equal(found) >= 2 * 8
    assert all(torch.equal(told.end, found[0].end) for told in found.values())


@pytest.mark.parametrize(("name", "coded"), CASES)
def test_workers_that_miss_exchanges_while_they_rest_get_the_whole_copy_then(name: str, coded: dict[str, Any]) -> None:
    """Rank 0 evaluates two steps before the others come to it."""
    plan = Training(settings={"strategy": name, **coded}, steps=14)

    def live(world: Any) -> Told:
        mine = Training(**{**plan.__dict__, "evaluates": (4 if world.rank == 0 else 6,)})
        return mine.live(world)

    found = dict(enumerate(run(4, live)))
    assert assert_copies_are_equal(found) >= 4 * 2 * 9
    assert found[2].of.keys() - found[0].of.keys() == {4, 5}, "rank 0 has missed these"
    more = [
        2 * told.sent[6] - told.sent[5] - told.sent[7] for told in (found[1], found[2])
    ]  # than in the exchange after it
    assert more[0] > 4 * 120 / 2, "rank 0 is told whole what it has missed"
    assert more[1] == 0


@pytest.mark.parametrize(("name", "coded"), CASES)
def test_an_evaluation_changes_nothing(name: str, coded: dict[str, Any]) -> None:
    plan = Training(settings={"strategy": name, **coded}, begins_apart=True)
    still, moved = (trained(3, Training(**{**plan.__dict__, "evaluates": at})) for at in [(), (4, 5, 9)])
    for rank in range(3):
        assert all(torch.equal(x, y) for x, y in zip(still[rank].replicas, moved[rank].replicas, strict=True))


@pytest.mark.parametrize(("name", "coded"), CASES)
@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_they_are_equal_among_those_that_outlive_a_death(name: str, coded: dict[str, Any], graph: str) -> None:
    plan = Training(
        settings={"strategy": name, "topology": graph, **coded},
        steps=24,
        dies=(2, 6),
        begins_apart=True,
        pauses=lambda rank, step: 0.01,
    )

    outcomes = VirtualWorld(5, timeout=60.0).outcomes(joined(plan.live))
    assert [one.is_crashed for one in outcomes] == [False, False, True, False, False]
    found = {one.rank: one.result for one in outcomes if one.result is not None}
    assert sorted(found) == [0, 1, 3, 4]
    assert_copies_are_equal(found)
    newest = max(found[0].of)
    assert found[1].of[newest].keys() == ({0, 3} if graph == "ring" else {0, 3, 4}), "the ring is closed over the dead"
    assert all(torch.equal(told.end, found[0].end) for told in found.values())


@pytest.mark.parametrize(("name", "coded"), CASES)
def test_a_message_that_is_lost_lets_both_ends_of_its_edge_begin_anew(name: str, coded: dict[str, Any]) -> None:
    lose = Fault("drop", rank=1, at=9, operation="send")
    plan = Training(settings={"strategy": name, **coded}, steps=16)
    found = trained(4, plan, faults=[lose])
    assert lose.fired
    assert_copies_are_equal(found)
    newest = max(found[0].of)
    assert [sorted(found[rank].of[newest]) for rank in range(4)] == [[1, 3], [0, 2], [1, 3], [0, 2]]
    assert any(len(found[rank].of[number]) < 2 for rank in range(4) for number in found[rank].of), "not used meanwhile"


@pytest.mark.parametrize(("name", "coded"), CASES)
def test_a_training_goes_on_to_the_bit_from_a_checkpoint(tmp_path: Path, name: str, coded: dict[str, Any]) -> None:
    def of(steps: int, saves_at: int | None, root: str) -> list[Told]:
        settings = {"strategy": name, **coded}
        return in_world(
            3, tmp_path / root, Training(settings=settings, steps=steps, saves_at=saves_at, loads=True).live
        )

    whole = of(14, None, "whole")
    of(9, 6, "kept")
    again = of(14, None, "kept")
    for mine, other in zip(again, whole, strict=True):
        assert len(mine.replicas) == 8
        assert all(torch.equal(x, y) for x, y in zip(mine.replicas, other.replicas[6:], strict=True))
        assert [mine.sent[step] - mine.sent[step - 1] for step in (1, 2)] == [other.sent[7] - other.sent[6]] * 2


@pytest.mark.parametrize(("name", "coded"), CASES)
@pytest.mark.parametrize("size", [2, 5])
def test_other_numbers_of_workers_begin_with_the_same_copies(
    tmp_path: Path, name: str, coded: dict[str, Any], size: int
) -> None:
    settings = {"strategy": name, **coded}
    in_world(3, tmp_path, Training(settings=settings, steps=7, saves_at=6, loads=True).live)
    after = in_world(size, tmp_path, Training(settings=settings, steps=12, loads=True).live)
    assert assert_copies_are_equal(dict(enumerate(after))) >= size * 5
    assert all(len(told.replicas) == 6 for told in after)
    neighbours = min(2, size - 1)
    assert after[0].sent[0] == neighbours * 4 * 240, "they are told whole"
    assert after[0].sent[2] - after[0].sent[1] < neighbours * 4 * 190, "once"
