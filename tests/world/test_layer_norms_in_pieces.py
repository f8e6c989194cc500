"""LARS and LAMB over models in pieces make the steps of whole replicas: norms are of whole layers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import ConfigurationError
from quorate.optim import LARS
from tests.support import sharded_trainings, tensor_trainings
from tests.support.layered import LAYERED
from tests.support.processes import run_real_world
from tests.support.sampled import Few

SHARDED = [
    *(sharded_trainings.Case(optimizer=name, zero=2 + place) for place, name in enumerate(LAYERED)),
    sharded_trainings.Case(optimizer="LARS", replicas=2, frozen=True, thaws=True, schedule=True),
    sharded_trainings.Case("quorum", {"wait_for": "all", "grace": 5.0}, optimizer="LAMB", replicas=2),
    sharded_trainings.Case("local-sgd", {"sync_every": 2, "momentum": "average"}, optimizer="LARS", replicas=2),
    sharded_trainings.Case(optimizer="LARS", replicas=2, offload="optimizer"),
]
InPieces = sharded_trainings.Case | tensor_trainings.Case
CUT = [tensor_trainings.Case(mesh={"shards": 2, "tensor": 2}, optimizer=name) for name in LAYERED]


def all_of(cases: Sequence[InPieces], world: Any) -> list[Any]:
    torch.set_num_threads(1)
    return [
        sharded_trainings.sharded(case, world)[0]
        if isinstance(case, sharded_trainings.Case)
        else tensor_trainings.cut(case, world).parameters
        for case in cases
    ]


def test_four_workers_make_the_steps_of_whole_replicas(few: Few) -> None:
    cases = few([*SHARDED, *CUT])
    for case, *ends in zip(cases, *run_real_world(4, partial(all_of, cases), 120.0), strict=True):
        if isinstance(case, sharded_trainings.Case):
            wanted, _ = sharded_trainings.replicated(case, 4)
            for end in ends:
                assert max(float((a - b).abs().max()) for a, b in zip(end, wanted, strict=True)) < 1e-5, case
        else:
            whole = tensor_trainings.whole_replicas(case, 4)[0].parameters
            for end, (name, x) in itertools.product(ends, whole.items()):
                torch.testing.assert_close(end[name], x, rtol=1e-4, atol=1e-5, msg=f"{case} {name}")


def refused(world: Any) -> list[str]:
    """What is said of a step that nobody has distributed, and of one that is made beside the training."""
    found = []
    for delays in (False, True):
        offload: Any = "optimizer" if delays else None
        model: Any = quorate.parallelize(torch.nn.Linear(8, 8), offload=offload, delayed_update=delays)
        optimizer: Any = LARS(model.parameters(), lr=0.1)
        model(torch.ones(2, 8)).sum().backward()
        with pytest.raises(ConfigurationError) as error:
            quorate.distribute(optimizer, model) if delays else optimizer.step()
        found.append(str(error.value))
    return found


def test_what_cannot_add_norms_up_is_refused() -> None:
    for alone, delayed in run_real_world(2, refused, 60.0):
        assert "call quorate.distribute(optimizer, model) before the first step" in alone
        assert "LARS may send something in its step" in delayed
