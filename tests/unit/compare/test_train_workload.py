"""The script that trains workloads: the learning rates of a workload's own schedule."""

from __future__ import annotations

import torch
from torch.optim import SGD

from quorate.compare.train_workload import rate_at, schedule_of, with_shares
from quorate.core.workload import Workload
from quorate.workloads.least_squares import LeastSquares


class Rising(LeastSquares):
    """Rates of 1, 2, 3 and so on."""

    def rate(self, step: int) -> float:
        return float(step)


def rates(workload: Workload[object], step_share: float | None, steps: int) -> list[float]:
    optimizer = SGD(torch.nn.Linear(1, 1).parameters(), lr=0.5)
    schedule = schedule_of(workload, optimizer, step_share)
    used = []
    for _ in range(steps):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return used


def test_a_workload_has_its_own_rates_or_a_constant_one() -> None:
    assert rates(Rising(), None, 3) == [0.5, 1.0, 1.5]
    assert rates(LeastSquares(), None, 3) == [0.5, 0.5, 0.5]


def test_a_falling_rate_replaces_the_one_of_the_workload() -> None:
    assert rates(Rising(), 0.1, 3) == [0.5 * rate_at(share) for share in (0.1, 0.2, 0.30000000000000004)]


def test_pieces_also_end_where_the_model_becomes_smaller() -> None:
    """In whole steps, with the evaluations where they were; a share of 0 is before the first step."""
    pieces = with_shares([40, 40, 20], [0.0, 0.1, 0.4, 0.99], 8)
    assert pieces == [
        (0, False, 0.0),
        (8, False, 0.1),
        (32, True, 0.4),
        (40, True, 0.0),
        (16, False, 0.99),
        (4, True, 0.0),
    ]
    assert with_shares([40, 20], [], 8) == [(40, True, 0.0), (20, True, 0.0)]
