"""Compiled models and bfloat16 by autocast in real processes on the CPU, under every strategy."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.every_strategy import NAMES, OF_ONE_HOST, OWN
from tests.support.gpu_trainings import Run, trained
from tests.support.processes import run_real_world
from tests.support.sampled import Few

SETTINGS = {"robust": {"momentum": 0.0}, "async-local-sgd": {"outer_rate": 0.5, "outer_momentum": 0.5}}
COMPILED = [
    Run(name, SETTINGS.get(name, {}), amp="bfloat16", compiled=True, backend="aot_eager", steps=60)
    for name in NAMES
    if name not in (*OF_ONE_HOST, *OWN)
]


def compiled(runs: list[Run], world: Any) -> list[tuple[list[float], list[Tensor], int]]:
    """Return what each training gives, and the number of code objects that torch has compiled for it."""
    found = []
    for run in runs:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        losses, parameters = trained(run, "cpu", world)
        found.append((losses, parameters, torch._dynamo.utils.counters["frames"]["ok"]))
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_compiled_model_learns_in_bfloat16_and_ends_equal_on_all_workers(few: Few) -> None:
    runs = few(COMPILED)
    first, second = run_real_world(2, partial(compiled, runs), 280.0)
    for run, (losses, parameters, count), (_, others, _) in zip(runs, first, second, strict=True):
        assert count > 0, run.strategy
        assert losses[1] < 0.98 * losses[0], (run.strategy, losses)
        assert all(torch.equal(a, b) for a, b in zip(parameters, others, strict=True)), run.strategy
