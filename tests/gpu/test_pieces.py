"""Models in shards on a GPU: the numbers of whole replicas on the CPU, with and without offload."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.support.on_gpu import needs_gpu, needs_real_gpu, run_on_gpu
from tests.support.processes import WorkersFailed
from tests.support.sampled import Few
from tests.support.sharded_trainings import Case, replicated
from tests.world import (
    test_branches,
    test_convolutions,
    test_delayed_stages,
    test_experts,
    test_sequence_pieces,
    test_stages,
    test_tensor_parallel,
)
from tests.world.test_offload import USES as OFFLOADED
from tests.world.test_offload import all_of as ends_of
from tests.world.test_offload import furthest
from tests.world.test_sharding import USES

pytestmark = [pytest.mark.gpu, needs_gpu, pytest.mark.slow]


def apart(cases: dict[str, Case], size: int, gpus: str) -> dict[str, float]:
    """How far the cases end from whole replicas, of those that do so by more than rounding."""
    found = run_on_gpu(size, partial(ends_of, list(cases.values())), 200.0, gpus=gpus)
    told = {}
    for number, (name, case) in enumerate(cases.items()):
        wanted, _ = replicated(case, size)
        told[name] = max(furthest(end[number], wanted) for end in found)
    return {name: far for name, far in told.items() if not far < (2e-2 if name == "precision" else 2e-5)}


@needs_real_gpu
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_two_shards_are_one_worker(zero: int) -> None:
    assert apart({name: replace(case, zero=zero) for name, case in USES.items()}, 2, "nccl") == {}


@needs_real_gpu
def test_two_shards_on_one_gpu_are_refused() -> None:
    with pytest.raises(WorkersFailed, match="a model in pieces on GPUs needs NCCL"):
        run_on_gpu(2, partial(ends_of, [Case()]), 60.0)


@needs_real_gpu
@pytest.mark.parametrize("size", [1, 2])
def test_offload(size: int) -> None:
    assert apart(OFFLOADED, size, "nccl") == {}


STRATEGIES = {
    "local-sgd": {"sync_every": 2, "momentum": "average"},
    "diloco": {"sync_every": 4, "fragments": 2, "overlap": 1},
    "d-psgd": {},
    "quorum": {"wait_for": "all", "grace": 5.0},
}


def test_strategies_between_replicas() -> None:
    cases = {name: Case(name, dict(settings), replicas=2) for name, settings in STRATEGIES.items()}
    assert apart(cases, 2, "nccl") == {}


def of_the_cpu() -> Iterator[Any]:
    """Tests of other ways to cut a model, held here against the same numbers with models and batches on the GPU; those
    without shards and DTensors that are gathered do without torch's collectives."""
    for test in (
        test_sequence_pieces.test_two_workers_share_sequences,
        test_stages.test_every_schedule,
        test_stages.test_loops_of_many_kinds,
        test_delayed_stages.test_two_stages,
    ):
        yield pytest.param(test, id=test.__name__)
    for test in (
        test_tensor_parallel.test_two_workers_compute_an_mlp,
        test_convolutions.test_two_workers_share_filters,
        test_branches.test_two_workers_have_branches_of_their_own,
        test_experts.test_two_workers_are_one_process,
        test_stages.test_stages_beside_other_axes,
    ):
        yield pytest.param(test, id=test.__name__, marks=needs_real_gpu)


@pytest.mark.parametrize("test", list(of_the_cpu()))
def test_cut_in_other_ways(test: Any, monkeypatch: pytest.MonkeyPatch, few: Few) -> None:
    def run(size: int, task: Any, timeout: float, **_: Any) -> Any:
        return run_on_gpu(size, task, timeout, gpus="nccl", has_data=True)

    monkeypatch.setattr(sys.modules[test.__module__], "run_real_world", run)
    test(few) if "few" in inspect.signature(test).parameters else test()
