"""Workers that die inside sums that go by messages, between any two of them: the others go on, equal, and at once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.by_messages import ByMessages
from tests.unit.rounds.test_deaths import check, training
from tests.unit.rounds.test_laws import speeds

STRATEGIES: dict[str, list[dict[str, Any]]] = {
    "all-reduce": [{"on_death": "continue"}],
    "local-sgd": [{"sync_every": 1}, {"sync_every": 3}],
    "diloco": [{"sync_every": 2}, {"sync_every": 3, "overlap": 1}],
    "group-averaging": [{"sync_every": 2, "group_size": 2}],
    "hierarchical-local-sgd": [{"sync_every": 1, "across_every": 2, "group_size": 2}],
}
SECONDS = 4.0
"""A training takes about one; a wait that nothing ends takes sixty."""


def outlived(strategy: str, seed: int) -> int:
    """How many died in one training."""
    draw = random.Random(seed)
    size = draw.choice([3, 3, 4])
    victims = draw.sample(range(size), draw.choice([1, 1, 2]))
    plan = training(
        size,
        {rank: draw.randint(1, draw.choice([4, 12, 40, 120])) for rank in victims},
        seed=seed,
        rests=tuple(step for step in (3, 6) if draw.random() < 0.4),
        pause=speeds(draw, size),
        strategy=strategy,
        settings=draw.choice(STRATEGIES[strategy]),
        wraps=ByMessages,
    )
    check(plan)
    assert plan.stage.stage.scheduler.now < SECONDS
    return sum(fault.fired for fault in plan.faults.values())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_random_deaths_in_sums_of_messages(strategy: str, times: int) -> None:
    assert sum(outlived(strategy, seed) for seed in range(4 * times)) >= times
