"""Sparse tables by rows over the workers of a replica: parameters of one process on the joined batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.processes import run_real_world
from tests.support.sampled import Few
from tests.support.table_trainings import Case, alone, kept, spread

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant")  # of torch.optim.Adagrad


def all_of(cases: Sequence[Case], world: Any) -> list[Any]:
    torch.set_num_threads(1)
    return [spread(case, world) for case in cases]


def check(cases: Sequence[Case], size: int) -> None:
    ends = run_real_world(size, partial(all_of, cases), 200.0)
    for number, case in enumerate(cases):
        most = {"float64": 1e-12, "float32": 1e-6}[case.numbers] if case.precision is None else 0.02
        for parameters in ends:
            reference = alone(case, 1 if case.is_along_tensor else size)
            for x, expected in zip(parameters[number], reference, strict=True):
                torch.testing.assert_close(x, expected, rtol=0, atol=most, msg=lambda text, case=case: f"{case} {text}")


def test_two_workers_are_one_process(few: Few) -> None:
    cases = [
        Case(),
        Case(zero=1, accumulates=2, empty=1),
        Case(zero=2, optimizer="adagrad"),
        Case(optimizer="adam"),
        Case(numbers="float32", optimizer="adam", accumulates=2),
        Case(precision="bfloat16", numbers="float32"),
        Case(is_along_tensor=True),
        Case(is_along_tensor=True, optimizer="adam", accumulates=2),
    ]
    check(few(cases), 2)


def test_three_workers_are_one_process(few: Few) -> None:
    three = [Case(empty=0), Case(optimizer="adam", zero=2), Case(optimizer="adagrad", zero=1, empty=2)]
    check(few([*three, Case(is_along_tensor=True, optimizer="adagrad")]), 3)


STRATEGIES: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "local-sgd": {"sync_every": 1},
    "quorum": {"wait_for": "all"},
}


def test_four_workers(few: Few) -> None:
    """Strategies between replicas exchange the rows of each shard."""
    check(few([Case(name, settings, replicas=2) for name, settings in STRATEGIES.items()]), 4)


def go_on(case: Case, root: Path, until: int, workers: int) -> Any:
    torch.set_num_threads(1)
    return run_real_world(workers, partial(kept, case, root, until, 6), 120.0)


@pytest.mark.parametrize("is_along_tensor", [False, True], ids=["shards", "tensor"])
def test_resumed_on_another_number_of_workers(is_along_tensor: bool, tmp_path: Path) -> None:
    case = Case(optimizer="adam", is_along_tensor=is_along_tensor)
    for until, workers in ((1, 2), (2, 3), (3, 1), (4, 2)):
        ends = go_on(case, tmp_path, until, workers)
    for end in ends:
        for x, expected in zip(end, alone(case, 6, 4), strict=True):
            torch.testing.assert_close(x, expected, rtol=0, atol=1e-12)
