"""What rounds would be under another quorum, against what they are by hand and among virtual workers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.core.durations import UCF101_LSTM, Batches
from quorate.rounds.choice.choosing import forecast, quorums
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined


def test_waiting_for_all_takes_as_long_as_the_slowest_and_the_exchange() -> None:
    found = forecast([[1.0, 3.0], [2.0, 1.0]], 2, 0.5, steps=4)
    assert found.seconds == pytest.approx((2.0 + 3.0) / 2 + 0.5)
    assert (found.gradients, found.staleness) == (2.0, 0.0)


def test_with_nobody_waited_for_everyone_works_all_the_time() -> None:
    """Worker 1 takes three times as long: each of its gradients comes when three rounds have gone by, in the next."""
    found = forecast([[1.0], [3.0]], 1, steps=600)
    assert found.seconds == pytest.approx(1.0)
    assert found.gradients == pytest.approx(4 / 3, rel=0.01)
    assert found.staleness == pytest.approx(3 / 4, rel=0.01)
    assert found.seconds_per_gradient == pytest.approx(3 / 4, rel=0.01)


@pytest.mark.parametrize("wait_for", [1, 2, 4, 5])
def test_it_says_what_virtual_workers_do(wait_for: int) -> None:
    draw = random.Random(wait_for)
    work = [[draw.uniform(0.02, 0.2) for _ in range(30)] for _ in range(5)]

    @joined
    def live(world: quorate.World) -> list[Any]:
        model = torch.nn.Linear(1, 1)
        made: Any = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer = quorate.distribute(made, model, strategy="quorum", wait_for=wait_for, with_one_worker="algorithm")
        watch, seen = optimizer.__dict__["_quorate_worker"]._rounds.watch, []
        noted = watch.note_round
        watch.note_round = lambda one: (seen.append((one.contributors, world.wire.clock.now())), noted(one))
        for seconds in work[world.rank]:
            world.wire.clock.sleep(seconds)
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        until = world.wire.clock.now()
        optimizer.finish()
        return [seen, until]

    ends = VirtualWorld(5, timeout=600.0).run(live)
    until = min(end for _, end in ends)
    rounds = [(taken, time) for taken, time in ends[0][0] if time <= until]
    gradients = [(s, n) for taken, _ in rounds for given in taken.values() for s, n in given]
    computing = 0.01  # of each step, in a virtual world that was told nothing else
    expected = forecast([[one + computing for one in own] for own in work], wait_for, steps=30)
    count = sum(n for _, n in gradients)
    assert expected.seconds_per_gradient == pytest.approx(rounds[-1][1] / count, rel=0.05)
    assert expected.gradients == pytest.approx(count / len(rounds), rel=0.05)
    assert expected.staleness == pytest.approx(sum(s * n for s, n in gradients) / count, rel=0.1, abs=0.05)


def test_of_batches_like_those_of_videos() -> None:
    """The table in docs/explanation/adaptive.md, a row: waited for, share of what there could be, steps late."""
    draw = Batches(UCF101_LSTM, seed=0)
    work = [[draw(rank, step) for step in range(400)] for rank in range(8)]
    most = sum(400 / sum(own) for own in work)
    page = (Path(__file__).parents[3] / "docs/explanation/adaptive.md").read_text()
    for wait_for in (8, 7, 6, 4, 2, 1):
        found = forecast(work, wait_for, steps=400)
        share, late = 1 / found.seconds_per_gradient / most, found.staleness * found.gradients / 8
        assert f"| {wait_for} | {share:.2f} | {late:.2f} |".replace("0.00 |", "0 |") in page


def test_of_many_quorums_some_are_looked_at() -> None:
    assert quorums(3) == [1, 2, 3]
    assert quorums(64) == [1, 2, 3, 6, 11, 20, 35, 64]
    assert quorums(1) == [1]
