"""Workers that die at any point of a training in local steps: it costs at most what they did since the last mean."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.scene import Scene, parameters, ranked, zeros
from tests.unit.rounds.test_deaths import check, planned

STRATEGIES: dict[str, list[dict[str, Any]]] = {
    "eager-averaging": [{"wait_for": 1}, {"wait_for": "majority"}, {"wait_for": "all"}],
    "decoupled-diloco": [{"wait_for": 1}, {"fragments": 2, "overlap": 0}, {"wait_for": "all", "overlap": 0}],
    "async-local-sgd": [{}, {"dynamic": False}, {"outer": "adam", "late": "cosine", "late_cutoff": 3.0}],
    "fed-buff": [{"wait_for": 2}, {"wait_for": "all"}],
    "group-averaging": [{"group_size": 2}, {"group_size": 4}],
    "hierarchical-local-sgd": [{"group_size": 2, "across_every": 3}, {"group_size": 8, "across_every": 2}],
    "diloco": [{"overlap": 1}],
}


def outlived(strategy: str, seed: int) -> int:
    """How many died in one training; those that are left are equal."""
    plan, draw = planned(seed), random.Random(seed)
    period = draw.choice([2, 4])
    plan.strategy, plan.settings = strategy, {"sync_every": period, **draw.choice(STRATEGIES[strategy])}
    if strategy not in ("eager-averaging", "decoupled-diloco", "async-local-sgd", "fed-buff"):
        plan.deaths = {rank: max(1, count // 4) for rank, count in plan.deaths.items()}
    check(plan)
    return sum(fault.fired for fault in plan.faults.values())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_random_deaths(strategy: str, times: int) -> None:
    assert sum(outlived(strategy, seed) for seed in range(3 * times)) >= times


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("eager-averaging", {"wait_for": "all", "sync_every": 2}),
        ("group-averaging", {"sync_every": 2, "group_size": 2}),
        ("hierarchical-local-sgd", {"sync_every": 1, "across_every": 2, "group_size": 3}),
    ],
)
def test_the_mean_is_that_of_those_that_are_left(strategy: str, settings: dict[str, Any]) -> None:
    """Rank r brings r + 1 in each of four steps; rank 2 dies before its third, when all have been at a mean."""

    chosen = {"model": zeros(), "rate": 1.0, "loss": ranked, "steps": 4, "pause": 0.01, **settings}
    ends = Scene(strategy, dies={2: 2}, **chosen).survivors(parameters)
    assert ends[0].item() == ends[1].item() == pytest.approx(-(2 + 2 + 1.5 + 1.5), rel=1e-6)
