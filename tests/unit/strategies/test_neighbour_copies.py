"""The copies that neighbours keep of each other: equal to the bit at both ends of every edge, whatever happens."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.compressed_gossip import NAMES, assert_copies_are_equal, scene, told
from tests.support.faulty import Fault
from tests.support.gossip import speeds
from tests.support.scene import Trainer, pause

QSGD: dict[str, Any] = {"compress": "qsgd", "dense_below": 0}
TOP_K: dict[str, Any] = {"compress": "top-k", "density": 0.1, "dense_below": 0}
CASES = [("choco-sgd", TOP_K), *((name, QSGD) for name in NAMES)]
GRAPHS = ["ring", "complete", "star", "random:degree=3"]


@pytest.mark.parametrize(("name", "coded"), CASES)
@pytest.mark.seeds(3, 9)
def test_they_are_equal_among_workers_of_any_speed_that_rest_and_end(
    name: str, coded: dict[str, Any], seed: int
) -> None:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5, 8])
    graph = draw.choice(GRAPHS[: 4 if size > 3 else 3])
    lengths = [draw.choice([9, 12]) for _ in range(size)]
    fields: Any = {"begins_apart": True, "rests": (4,), "steps": lengths, "pause": speeds(draw, size)}
    found = scene(name, size, topology=graph, seed=seed, **fields, **coded).survivors(told)
    assert assert_copies_are_equal(found) >= 2 * 8
    assert all(torch.equal(one.end, found[0].end) for one in found.values())


@pytest.mark.parametrize(("name", "coded"), CASES)
def test_workers_that_miss_exchanges_while_they_rest_get_the_whole_copy_then(name: str, coded: dict[str, Any]) -> None:
    """Rank 0 evaluates two steps before the others come to it."""

    def before(trainer: Trainer) -> None:
        if trainer.step == (6 if trainer.rank else 4):
            pause(trainer)

    found = scene(name, 4, steps=14, before=before, **coded).survivors(told)
    assert assert_copies_are_equal(found) >= 4 * 2 * 9
    assert found[2].of.keys() - found[0].of.keys() == {4, 5}, "rank 0 has missed these"
    more = [2 * one.sent[6] - one.sent[5] - one.sent[7] for one in (found[1], found[2])]  # than in the one after it
    assert more[0] > 4 * 120 / 2, "rank 0 is told whole what it has missed"
    assert more[1] == 0


@pytest.mark.parametrize(("name", "coded"), CASES)
def test_an_evaluation_changes_nothing(name: str, coded: dict[str, Any]) -> None:
    still, moved = (scene(name, 3, begins_apart=True, rests=at, **coded).run(told) for at in [(), (4, 5, 9)])
    for rank in range(3):
        assert all(torch.equal(x, y) for x, y in zip(still[rank].replicas, moved[rank].replicas, strict=True))


@pytest.mark.parametrize(("name", "coded"), CASES)
@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_they_are_equal_among_those_that_outlive_a_death(name: str, coded: dict[str, Any], graph: str) -> None:
    fields: Any = {"steps": 24, "dies": {2: 6}, "begins_apart": True, "pause": 0.01, "topology": graph}
    found = scene(name, 5, **fields, **coded).survivors(told)
    assert sorted(found) == [0, 1, 3, 4]
    assert_copies_are_equal(found)
    newest = max(found[0].of)
    assert found[1].of[newest].keys() == ({0, 3} if graph == "ring" else {0, 3, 4}), "the ring is closed over the dead"
    assert all(torch.equal(one.end, found[0].end) for one in found.values())


@pytest.mark.parametrize(("name", "coded"), CASES)
def test_a_message_that_is_lost_lets_both_ends_of_its_edge_begin_anew(name: str, coded: dict[str, Any]) -> None:
    lose = Fault("drop", rank=1, at=9, operation="send")
    found = scene(name, 4, steps=16, drops=[lose], **coded).survivors(told)
    assert lose.fired
    assert_copies_are_equal(found)
    newest = max(found[0].of)
    assert [sorted(found[rank].of[newest]) for rank in range(4)] == [[1, 3], [0, 2], [1, 3], [0, 2]]
    assert any(len(found[rank].of[number]) < 2 for rank in range(4) for number in found[rank].of), "not used meanwhile"


@pytest.mark.parametrize(("name", "coded"), CASES)
def test_a_training_goes_on_to_the_bit_from_a_checkpoint(tmp_path: Path, name: str, coded: dict[str, Any]) -> None:
    whole, again = scene(name, 3, steps=14, **coded).resumed(tmp_path, 6, 9, told)
    for mine, other in zip(again, whole, strict=True):
        assert len(mine.replicas) == 8
        assert all(torch.equal(x, y) for x, y in zip(mine.replicas, other.replicas[6:], strict=True))
        assert [mine.sent[step] - mine.sent[step - 1] for step in (1, 2)] == [other.sent[7] - other.sent[6]] * 2


@pytest.mark.parametrize(("name", "coded"), CASES)
@pytest.mark.parametrize("size", [2, 5])
def test_other_numbers_of_workers_begin_with_the_same_copies(
    tmp_path: Path, name: str, coded: dict[str, Any], size: int
) -> None:
    kept = scene(name, 3, root=tmp_path, steps=7, saves=[6], **coded)
    kept.run()
    after = kept.but(size=size, steps=12, saves=(), loads=True).run(told)
    assert assert_copies_are_equal(dict(enumerate(after))) >= size * 5
    assert all(len(one.replicas) == 6 for one in after)
    neighbours = min(2, size - 1)
    assert after[0].sent[0] == neighbours * 4 * 240, "they are told whole"
    assert after[0].sent[2] - after[0].sent[1] < neighbours * 4 * 190, "once"
