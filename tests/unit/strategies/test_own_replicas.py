"""Two things to evaluate under local steps: the mean of all, and what each worker came with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import quorate
from quorate.launch.worker.world import World
from quorate.observe.step_times import timing
from quorate.records.records import Recorder, records_of, rows
from quorate.wire import current
from tests.support.local_trainings import Told, flat, loss, net, run

STEPS, EVALUATES = 11, (5, 7)
STRATEGIES: list[tuple[str, dict[str, Any]]] = [
    ("local-sgd", {"sync_every": 3}),
    ("slowmo", {"sync_every": 3, "slow_every": 1}),
    ("adaptive-local-sgd", {"sync_every": 3, "least": 3}),
    ("diloco", {"sync_every": 4, "fragments": 2, "overlap": 1}),
    ("eager-averaging", {"sync_every": 3, "wait_for": 1}),
    ("decoupled-diloco", {"sync_every": 4, "fragments": 2, "overlap": 1, "wait_for": 1}),
    ("async-local-sgd", {"sync_every": 4}),
    ("group-averaging", {"sync_every": 4}),
    ("hierarchical-local-sgd", {"sync_every": 3, "across_every": 3, "group_size": 2}),
]


def train(
    world: World, strategy: str, order: tuple[str, ...], *, folder: Path | None = None, **settings: Any
) -> tuple[Told, list[dict[str, Tensor]]]:
    """With evaluations in this order, and what the model was in each, and before and after them."""
    recorder = None if folder is None else Recorder(records_of(folder, world.rank))
    if recorder is not None:
        timing(current.here()).recorder = recorder
    model = net()
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model, strategy, **settings)
    assert world.replicas_differ
    seen = []
    for step in range(STEPS):
        if step in EVALUATES:
            found = {"before": flat(model)}
            for at in order:
                with world.evaluate(at="mean" if at == "mean" else "replica"):
                    found[at] = flat(model)
            seen.append({**found, "after": flat(model)})
        loss(model, world.rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.finish()
    assert not world.replicas_differ
    if recorder is not None:
        recorder.close()
    return Told(flat(model)), seen


@pytest.mark.parametrize(("strategy", "settings"), STRATEGIES, ids=[name for name, _ in STRATEGIES])
def test_an_evaluation_sees_the_mean_and_what_each_worker_came_with(strategy: str, settings: dict[str, Any]) -> None:
    ends = []
    for order in (("mean", "replica"), ("replica", "mean"), ("mean",)):

        def task(world: World, order: tuple[str, ...] = order) -> Any:
            return train(world, strategy, order, **settings)

        found: Any = run(3, task)
        for number in range(len(EVALUATES)):
            seen = [own[number] for _, own in found]
            assert all(torch.equal(one["mean"], seen[0]["mean"]) for one in seen)
            assert all(torch.equal(one["after"], one["mean"]) for one in seen)
            if "replica" in order:
                assert all(torch.equal(one["replica"], one["before"]) for one in seen)
                assert any(not torch.equal(one["replica"], seen[0]["replica"]) for one in seen)
        ends.append(found[0][0].end)
    assert all(torch.equal(end, ends[0]) for end in ends)  # what is looked at changes nothing


def test_under_eager_averaging_each_evaluation_tells_once_how_far_replicas_were_apart(tmp_path: Path) -> None:
    def task(world: World) -> Any:
        return train(world, "eager-averaging", ("mean", "replica", "mean"), folder=tmp_path, sync_every=3)

    found: Any = run(3, task)
    for rank, (_, seen) in enumerate(found):
        told = [row for row in rows(records_of(tmp_path, rank)) if row["kind"] == "distance"]
        assert [row["step"] for row in told] == [*EVALUATES, STEPS]
        for row, one in zip(told, seen, strict=False):
            assert row["distance"] == pytest.approx(math.dist(one["before"].tolist(), one["mean"].tolist()), rel=1e-4)
            assert row["norm"] == pytest.approx(float(one["mean"].norm()), rel=1e-4)
