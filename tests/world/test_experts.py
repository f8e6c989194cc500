"""Experts over the workers of a replica: losses, drops and parameters of one process that has all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.support.expert_trainings import Case, kept, on_one_each, spread
from tests.support.processes import run_real_world
from tests.support.sampled import Few


def all_of(cases: Sequence[Case], world: Any) -> list[Any]:
    torch.set_num_threads(1)
    return [spread(case, world) for case in cases]


def check(cases: Sequence[Case], size: int, most: float = 1e-9) -> None:
    """Parameters on each worker are those of its replica, and the mean of its losses is that one's."""
    found = run_real_world(size, partial(all_of, cases), 200.0)
    for number, case in enumerate(cases):
        shards = size // case.replicas
        for replica, (parameters, losses, dropped) in enumerate(on_one_each(case, size)):
            own = [one[number] for one in found[replica * shards : (replica + 1) * shards]]
            far = [float((a - b).abs().max()) for end, _, _ in own for a, b in zip(end, parameters, strict=True)]
            means = torch.tensor([told for _, told, _ in own], dtype=torch.float64).mean(0)
            assert max(far) < most, (case, max(far))
            assert float((means - torch.tensor(losses, dtype=torch.float64)).abs().max()) < most, case
            assert [sum(told) for told in zip(*(one for _, _, one in own), strict=True)] == dropped, case
            assert (sum(dropped) > 0) == (case.capacity_factor is not None), case


def test_two_workers_are_one_process(few: Few) -> None:
    cases = [
        Case(),
        Case(zero=1, accumulates=2),
        Case(zero=2, top_k=1, capacity_factor=0.75, clip=0.05),
        Case(optimizer="adamw", capacity_factor=None, recomputes=True),
        Case(optimizer="adamw", offload="optimizer"),
        Case(optimizer="adafactor"),
    ]
    check(few(cases), 2)


STRATEGIES: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "local-sgd": {"sync_every": 2, "momentum": "average"},
    "diloco": {"sync_every": 2, "fragments": 2, "overlap": 0},
    "d-psgd": {},
}


def test_four_workers(few: Few) -> None:
    """Strategies act between replicas on experts in pieces."""
    between = [Case(name, settings, replicas=2) for name, settings in STRATEGIES.items()]
    check(few([Case(top_k=1), *between]), 4)


def go_on(case: Case, root: Path, until: int, workers: int, *, shards: bool = True) -> Any:
    torch.set_num_threads(1)
    return run_real_world(workers, partial(kept, case, root, until, shards=shards), 120.0)


def furthest(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))


def test_resumed(tmp_path: Path) -> None:
    """To the bit in the same layout; in another one as one that was never interrupted."""
    case = Case(optimizer="adamw", replicas=1)
    for until in (2, 4):
        ends = go_on(case, tmp_path / "cut", until, 2)
    wanted = go_on(case, tmp_path / "whole", 4, 2)
    assert [furthest(end, other) for end, other in zip(ends, wanted, strict=True)] == [0.0, 0.0]
    go_on(case, tmp_path / "cut", 6, 1, shards=False)
    ends = go_on(case, tmp_path / "cut", 8, 2)
    wanted = go_on(case, tmp_path / "whole", 8, 2)
    assert max(furthest(end, other) for end, other in zip(ends, wanted, strict=True)) < 1e-9
