"""Each example of a stream is computed once, under every family of strategies, in one run and after resumes."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from typing import Any

import pytest

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
