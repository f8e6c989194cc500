"""Models in shards on real workers: the same numbers as whole replicas, for ZeRO 1, 2 and 3, and every strategy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import quorate
from tests.support.processes import run_real_world
from tests.support.sampled import Few
from tests.support.sharded_trainings import Case, Model, batch, replicated, sharded

USES = {
    "plain": Case(),
    "accumulation": Case(accumulates=3),
    "clipping": Case(clip=0.05),
    "frozen": Case(frozen=True, thaws=True),
    "tied": Case(tied=True),
    "checkpointing": Case(recomputes=True),
    "schedule, edits": Case(schedule=True, edits=True),
    "scaler": Case(scaler=True),
    "evaluations": Case(evaluates=True),
    "looks": Case(looks=True),
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "local-sgd": {"sync_every": 2, "momentum": "average"},
    "post-local-sgd": {"sync_every": 2, "after": 2},
    "slowmo": {"sync_every": 2, "slow_every": 1},
    "diloco": {"sync_every": 4, "fragments": 2, "overlap": 1},
    "streaming-diloco": {"sync_every": 4, "fragments": 2, "overlap": 0},
    "hierarchical-local-sgd": {"sync_every": 1, "across_every": 2, "group_size": 1},
    "d-psgd": {},
    "d2": {},
    "sgp": {},
    "choco-sgd": {"compress": "half"},
    "relay": {},
    "noloco": {"sync_every": 2, "outer_rate": 0.7},
    "quorum": {"wait_for": "all", "grace": 5.0},
    "backup-workers": {"wait_for": "all", "clip_norm": 0.05, "grace": 5.0},
}


def all_of(cases: Sequence[Case], world: Any) -> list[tuple[list[Tensor], list[float]]]:
    torch.set_num_threads(1)
    return [sharded(case, world) for case in cases]


def furthest(cases: Sequence[Case], size: int) -> list[float]:
    """Of each case, the greatest difference of a parameter on any worker from that of whole replicas."""
    found = run_real_world(size, partial(all_of, cases), 300.0)
    told = []
    for number, case in enumerate(cases):
        wanted, _ = replicated(case, size)
        ends = [one[number][0] for one in found]
        told.append(max(float((a - b).abs().max()) for end in ends for a, b in zip(end, wanted, strict=True)))
    return told


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_two_shards_are_one_worker(zero: int, few: Few) -> None:
    uses = few(list(USES))
    told = dict(zip(uses, furthest([replace(USES[name], zero=zero) for name in uses], 2), strict=True))
    assert not {name: far for name, far in told.items() if not far < 1e-6}


def test_adamw(capfd: pytest.CaptureFixture[str]) -> None:
    cases = [Case(optimizer="adamw", zero=zero, accumulates=4 - zero) for zero in (1, 3)]
    assert max(furthest(cases, 2)) < 1e-5
    assert "without a gradient" not in capfd.readouterr().err


def sent_in_a_step(zero: Any, world: Any) -> int:
    """Bytes, where three backward passes make one step."""
    model: Any = quorate.parallelize(Model(), zero=zero)
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    meter = optimizer.__dict__["_quorate_worker"].coordinates.traffic.meter
    before = meter.bytes_out.total()
    for part in range(3):
        with nullcontext() if part == 2 else optimizer.accumulate():
            model(batch(part, range(1))[0]).mean().backward()
    optimizer.step()
    sent = meter.bytes_out.total() - before
    optimizer.finish()
    return int(sent)


def of_each_stage(world: Any) -> list[int]:
    return [sent_in_a_step(zero, world) for zero in (1, 2, 3)]


def test_what_each_stage_sends_of_accumulated_gradients() -> None:
    """In times half of the parameters: to gather them for 3 forward passes (with 3, for as many backward passes, but
    for the root's), and to reduce gradients 3 times, or once."""
    model = Model()
    half = 4 * sum(p.numel() for p in model.parameters()) / 2
    root = 4 * sum(p.numel() for p in (*model.tokens.parameters(), *model.head.parameters())) / 2
    for first, second, third in run_real_world(2, of_each_stage, 60.0):
        assert first / half == pytest.approx(3 + 1, rel=0.02)
        assert second / half == pytest.approx(3 + 3, rel=0.02)
        assert third / half == pytest.approx(3 + 3 * (1 - root / half) + 3, rel=0.02)


def test_replicas_of_shards_are_replicas(few: Few) -> None:
    names = few(list(STRATEGIES))
    cases = [
        Case(name, STRATEGIES[name], replicas=2, zero=2 + number % 2, evaluates="diloco" not in name)
        for number, name in enumerate(names)
    ]
    told = dict(zip(names, furthest(cases, 4), strict=True))
    assert not {name: far for name, far in told.items() if not far < 2e-6}
