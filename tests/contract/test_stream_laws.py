"""Each example of a stream is computed once, under every family of strategies, in one run and after resumes."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from typing import Any

import pytest

from tests.architecture.tree import ROOT
from tests.support.ordinary_loops import FAMILIES
from tests.support.streams import Numbers, Placed, Sharded, Training

COUNT = 37
KINDS: dict[str, dict[str, Any]] = {
    "by item": {"stream": lambda: Numbers(COUNT)},
    "with a place": {"stream": lambda: Placed(COUNT)},
    "by shards": {"stream": lambda: Sharded(COUNT, 4)},
    "by one": {"stream": lambda: Placed(COUNT), "options": {"read": "one"}},
    "mixed": {"stream": lambda: Placed(COUNT), "options": {"shuffle_buffer": 8}},
    "mixed shards": {"stream": lambda: Sharded(COUNT, 4), "options": {"shuffle_buffer": 4}},
    "claimed": {"stream": lambda: Numbers(COUNT), "options": {"share": "dynamic"}},
    "equal shares": {"stream": lambda: Placed(COUNT), "options": {"share": "static"}},
}


def counted(*runs: list[list[tuple[int, int]]]) -> Counter[tuple[int, int]]:
    return Counter(example for run in runs for worker in run for example in worker)


def each_once(epochs: int = 1) -> Counter[tuple[int, int]]:
    return Counter((epoch, number) for epoch in range(epochs) for number in range(COUNT))


@pytest.mark.covering(("strategy", "kind", "size"), product(FAMILIES, KINDS, [1, 2, 3]))
def test_each_example_is_computed_once_in_each_epoch(strategy: str, kind: str, size: int) -> None:
    workers, _ = Training(strategy=strategy, epochs=2, **KINDS[kind]).run(size)
    assert counted(workers) == each_once(2)


@pytest.mark.covering(
    ("strategy", "kind", "before", "after", "stop"), product(FAMILIES, KINDS, [1, 2, 3], [1, 2, 3], [1, 4])
)
def test_no_example_is_lost_or_computed_twice_after_a_resume(
    strategy: str, kind: str, before: int, after: int, stop: int
) -> None:
    training = Training(strategy=strategy, **KINDS[kind])
    first, positions = training.run(before, stop=stop)
    second, _ = training.run(after, before=json.loads(json.dumps(positions)))
    assert counted(first, second) == each_once()


@pytest.mark.covering(("strategy", "kind"), product(FAMILIES, KINDS))
def test_resumed_twice(strategy: str, kind: str) -> None:
    training = Training(strategy=strategy, **KINDS[kind])
    first, positions = training.run(3, stop=2)
    second, positions = training.run(2, stop=2, before=positions)
    third, _ = training.run(3, before=positions)
    assert counted(first, second, third) == each_once()


@pytest.mark.covering(("strategy", "kind"), product(FAMILIES, KINDS))
def test_a_rerun_has_the_same_order(strategy: str, kind: str) -> None:
    training = Training(strategy=strategy, epochs=2, **KINDS[kind])
    assert training.run(3, seed=1)[0] == training.run(3, seed=1)[0]


@pytest.mark.covering(("strategy", "kind"), product(("all-reduce", "eager-majority", "local-sgd"), KINDS))
def test_survivors_compute_what_a_dead_worker_has_left(strategy: str, kind: str) -> None:
    training = Training(strategy=strategy, epochs=2, dies=(1, 3), **KINDS[kind])
    assert counted(training.run_with_a_death(3)) == each_once(2)


CLAIMED = [kind for kind in KINDS if kind != "equal shares"]


@pytest.mark.covering(("strategy", "kind"), product(("all-reduce", "eager-majority", "local-sgd"), CLAIMED))
def test_a_newcomer_claims_what_nobody_has_computed(strategy: str, kind: str) -> None:
    training = Training(strategy=strategy, epochs=2, dies=(1, 3), **KINDS[kind])
    workers = training.run_with_a_death(3, joins_at=0.06)
    assert counted(workers) == each_once(2)
    assert workers[3] or strategy == "local-sgd", "the newcomer has computed some, unless all ended before a mean"


def test_the_picture_of_the_guide() -> None:
    """One line for each world: the worker that computed each example of the first epoch."""

    def line(name: str, workers: list[list[tuple[int, int]]]) -> str:
        owner = {number: str(rank) for rank, seen in enumerate(workers) for epoch, number in seen if epoch == 0}
        return f"{name:<22}{''.join(owner.get(number, ' ') for number in range(36))}"

    training = Training(strategy="all-reduce", stream=lambda: Numbers(36))
    death = Training(strategy="all-reduce", stream=lambda: Numbers(36), dies=(1, 3))
    worlds = {
        "1 worker": training.run(1)[0],
        "2 workers": training.run(2)[0],
        "3 workers": training.run(3)[0],
        "3, and rank 1 dies": death.run_with_a_death(3),
        "and rank 3 joins": death.run_with_a_death(3, joins_at=0.06),
    }
    assert all(sorted(number for seen in each for _, number in seen) == list(range(36)) for each in worlds.values())
    picture = "\n".join(line(name, workers) for name, workers in worlds.items())
    assert picture in (ROOT / "docs/howto/streams.md").read_text(), f"the guide shows another picture:\n{picture}"
