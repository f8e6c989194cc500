"""Training in real processes that share one GPU: sums by NCCL and through the host's memory, every strategy, AMP."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.every_strategy import NAMES, OF_ONE_HOST, OF_THE_SAME_BATCHES, OWN
from tests.support.gpu_trainings import (
    Run,
    kept,
    late_is_not_finite,
    loaded,
    means,
    normalized,
    one_is_not_finite,
    several,
)
from tests.support.on_gpu import GPU, IS_REAL, WAYS, needs_gpu, needs_real_gpu, run_on_gpu
from tests.support.processes import run_real_world
from tests.support.scene import parameters, played
from tests.unit.strategies import test_coded
from tests.world.loops import CASES
from tests.world.test_matches_ddp import both_ways

pytestmark = [pytest.mark.gpu, needs_gpu, pytest.mark.slow]


@needs_real_gpu
@pytest.mark.parametrize("gpus", WAYS)
def test_all_reduce_has_the_bits_of_ddp(gpus: str) -> None:
    found = run_on_gpu(2, partial(both_ways, list(CASES)), gpus=gpus, has_data=True)[0]
    assert {name: one for name, one in found.items() if one[0] or one[1] < 1e-3 or not one[2]} == {}


@pytest.mark.parametrize("gpus", WAYS)
def test_as_on_the_cpu(gpus: str) -> None:
    runs = [Run(), Run(adamw=True, clips=True, accumulates=2)]
    here = [run_real_world(2, partial(_alone, run))[0] for run in runs]
    there = run_on_gpu(2, partial(several, runs, GPU.type), gpus=gpus)
    for number, wanted in enumerate(here):
        for told, end in (one[number] for one in there):
            assert told == pytest.approx(wanted[0], rel=2e-3)
            assert max(float((a - b).abs().max()) for a, b in zip(end, wanted[1], strict=True)) < 5e-3


def _alone(run: Run, world: object) -> tuple[list[float], list[torch.Tensor]]:
    torch.cuda.is_available = lambda: False
    return several([run], "cpu", world)[0]


@pytest.mark.parametrize("gpus", WAYS)
@pytest.mark.parametrize("strategy", ["all-reduce", "quorum", "eager-solo", "local-sgd", "sgp"])
def test_mixed_precision(strategy: str, gpus: str) -> None:
    runs = [
        Run(strategy, amp=amp, clips=True, late=strategy in ("quorum", "eager-solo")) for amp in ("bfloat16", "float16")
    ]
    _learnt(run_on_gpu(2, partial(several, runs, GPU.type), gpus=gpus))


@pytest.mark.parametrize("strategy", [name for name in NAMES if name not in (*OF_ONE_HOST, *OWN)])
def test_every_strategy_learns(strategy: str) -> None:
    settings = {"robust": {"momentum": 0.0}, "async-local-sgd": {"outer_rate": 0.5, "outer_momentum": 0.5}}.get(
        strategy, {}
    )
    _learnt(run_on_gpu(3, partial(several, [Run(strategy, settings, late=True)], GPU.type)))


CODES = [(name, {}) for name in OF_THE_SAME_BATCHES] + [(n, {"code": "cyclic"}) for n in ("draco", "gradient-coding")]


@pytest.mark.parametrize(("strategy", "settings"), CODES)
def test_where_workers_compute_the_same_batches(strategy: str, settings: dict[str, Any]) -> None:
    task = partial(played, test_coded.scene(3, strategy=strategy, s=1, **settings), parameters)
    found, wanted = run_on_gpu(3, task), run_real_world(3, task)[0]
    for end in found:
        assert torch.equal(end, found[0]) and test_coded.close(end, wanted)


COMPRESSED = ("half", "power-sgd", "top-k", "qsgd", "sign")


def test_compressed() -> None:
    runs = [Run(settings={"compress": name, "dense_below": 0}) for name in COMPRESSED]
    _learnt(run_on_gpu(2, partial(several, [*runs, Run(settings={"reduce": "median:f=0"})], GPU.type)))


COMPILED = [Run(compiled=True), Run("quorum", compiled=True)]


@needs_real_gpu
def test_compiled() -> None:
    _learnt(run_on_gpu(2, partial(several, COMPILED, GPU.type), 110.0))


def _learnt(ends: list[list[tuple[list[float], list[torch.Tensor]]]]) -> None:
    for number, ((before, after), first) in enumerate(ends[0]):
        assert after < 0.98 * before, (number, before, after)
        for end in ends[1:]:
            assert all(torch.equal(a, b) for a, b in zip(first, end[number][1], strict=True)), number


def test_a_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = run_on_gpu(2, partial(kept, tmp_path / "whole", 8))
    for until in (3, 8):
        cut = run_on_gpu(2, partial(kept, tmp_path / "cut", until))
    assert all(torch.equal(a, b) for a, b in zip(whole[0], cut[0], strict=True))


def test_batch_norm_over_all_workers() -> None:
    ends, (wanted,) = run_on_gpu(2, normalized), run_real_world(1, normalized)
    for part in (0, 1):
        torch.testing.assert_close(torch.cat([end[part] for end in ends]), wanted[part], rtol=1e-4, atol=1e-3)
    for part in (2, 3):
        torch.testing.assert_close(ends[0][part], wanted[part], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gpus", WAYS)
def test_a_gradient_that_is_not_finite_is_seen_there(gpus: str) -> None:
    (first, _), (second, told) = run_on_gpu(2, one_is_not_finite, gpus=gpus)
    assert all(bool(x.isfinite().all()) and torch.equal(x, y) for x, y in zip(first, second, strict=True))
    assert (
        "rank 1 (host" in told and "not finite to round 4 of all-reduce, first in 0.weight; its update is left" in told
    )


SHARDS = {"shards": 2}


@pytest.mark.skipif(IS_REAL, reason="two workers on one GPU have no shards but by NCCL, as test_pieces.py has them")
@pytest.mark.parametrize(("mesh", "who"), [({}, "rank 1 (host"), (SHARDS, "replica 0 (ranks 0 and 1)")])
@pytest.mark.parametrize("step", [1, 3])
def test_a_gradient_of_any_step_is_reported_although_flags_are_read_late(
    step: int, mesh: dict[str, int], who: str
) -> None:
    """Also one of the last step, behind which there is none that reads its flag."""
    for told in run_on_gpu(2, partial(late_is_not_finite, mesh, [step]), gpus="nccl"):
        (line,) = (line for line in told.splitlines() if "not finite" in line)
        assert who in line and f"not finite to round {step + 1} of all-reduce" in line


def test_batches_come_whole() -> None:
    for came, wanted in run_on_gpu(2, loaded):
        assert torch.equal(came, wanted)


@pytest.mark.parametrize("gpus", WAYS)
def test_means(gpus: str) -> None:
    for found in run_on_gpu(2, means, gpus=gpus):
        assert [one.tolist() for one in found] == [[1.5] * 3, [1.5] * 3, [1.0] * 3, [2.0] * 3]
