"""Two things to evaluate under local steps: the mean of all, and what each worker came with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from quorate.records.records import records_of, rows
from tests.support.local_trainings import loss, net
from tests.support.scene import Scene, Trainer

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


def trained(strategy: str, order: tuple[str, ...], **settings: Any) -> list[Trainer]:
    """With evaluations in this order, and what the model was in each, and before and after them."""

    def before(trainer: Trainer) -> None:
        assert trainer.world.replicas_differ
        if trainer.step in EVALUATES:
            found = {"before": trainer.parameters}
            for at in order:
                with trainer.world.evaluate(at="mean" if at == "mean" else "replica"):
                    found[at] = trainer.parameters
            trainer.seen.append({**found, "after": trainer.parameters})

    loss_of = lambda t: loss(t.model, t.rank, t.step)  # noqa: E731
    trainers = Scene(strategy, model=net, loss=loss_of, steps=STEPS, before=before, **settings).run()
    assert not any(trainer.world.replicas_differ for trainer in trainers)
    return trainers


@pytest.mark.parametrize(("strategy", "settings"), STRATEGIES, ids=[name for name, _ in STRATEGIES])
def test_an_evaluation_sees_the_mean_and_what_each_worker_came_with(strategy: str, settings: dict[str, Any]) -> None:
    ends = []
    for order in (("mean", "replica"), ("replica", "mean"), ("mean",)):
        trainers = trained(strategy, order, **settings)
        for number in range(len(EVALUATES)):
            seen = [trainer.seen[number] for trainer in trainers]
            assert all(torch.equal(one["mean"], seen[0]["mean"]) for one in seen)
            assert all(torch.equal(one["after"], one["mean"]) for one in seen)
            if "replica" in order:
                assert all(torch.equal(one["replica"], one["before"]) for one in seen)
                assert any(not torch.equal(one["replica"], seen[0]["replica"]) for one in seen)
        ends.append(trainers[0].parameters)
    assert all(torch.equal(end, ends[0]) for end in ends)  # what is looked at changes nothing


def test_under_eager_averaging_each_evaluation_tells_once_how_far_replicas_were_apart(tmp_path: Path) -> None:
    for trainer in trained("eager-averaging", ("mean", "replica", "mean"), records=tmp_path, sync_every=3):
        told = [row for row in rows(records_of(tmp_path, trainer.rank)) if row["kind"] == "distance"]
        assert [row["step"] for row in told] == [*EVALUATES, STEPS]
        for row, one in zip(told, trainer.seen, strict=False):
            assert row["distance"] == pytest.approx(math.dist(one["before"].tolist(), one["mean"].tolist()), rel=1e-4)
            assert row["norm"] == pytest.approx(float(one["mean"].norm()), rel=1e-4)
