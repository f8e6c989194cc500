"""Checkpoints of models in stages: resumed to the bit in the same layout, and in any other one."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.processes import run_real_world
from tests.support.sampled import Few
from tests.support.staged_trainings import Case, kept, kept_alone

LAYOUTS: list[tuple[int, dict[str, int], dict[str, Any]]] = [
    (2, {"stages": 2}, {}),
    (1, {}, {}),
    (4, {"stages": 2, "shards": 2}, {"stages": ["blocks.1"]}),
    (2, {"replicas": 2, "shards": 1}, {}),
    (2, {"stages": 2}, {"schedule": "interleaved-1f1b"}),
    (2, {"stages": 2}, {"stages": ["blocks.4"]}),
    (2, {"shards": 2}, {}),
    (2, {"stages": 2}, {}),
]
"""Workers, their mesh, and how the model is cut."""


def go_on(case: Case, root: Path, begins: int, until: int, workers: int) -> Any:
    optimizer: Any = torch.optim.AdamW if case.strategy == "all-reduce" else momentum
    return run_real_world(workers, partial(kept, case, optimizer, root, begins, until), 120.0)


def momentum(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def furthest(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    return max(float((x - wanted[name]).abs().max()) for name, x in found.items())


def test_resumed_in_other_stages(tmp_path: Path, few: Few) -> None:
    *earlier, last = LAYOUTS
    for place, (workers, mesh, chosen) in enumerate([*few(earlier), last]):
        ends = go_on(Case(mesh, chosen=chosen), tmp_path, place, place + 1, workers)
        wanted = kept_alone(Case(mesh), torch.optim.AdamW, place + 1)
        assert max(furthest(end, wanted) for end, _ in ends) < 1e-9, (workers, mesh)
    newest = max(tmp_path.glob("step-*"))
    about = json.loads((newest / "manifest.json").read_text())["optimizers"]["1"]
    assert about["shards"] == 2
    assert [names[0] for names in about["stages"]] == ["words", "blocks.3"]


PAIR = {"replicas": 2, "stages": 2}
MOMENTUM = ("quorum", {"wait_for": "all", "momentum": "worker", "grace": 5.0})


@pytest.mark.parametrize(("strategy", "settings"), [("diloco", {"sync_every": 2}), MOMENTUM])
def test_resumed_to_the_bit(tmp_path: Path, strategy: str, settings: dict[str, Any]) -> None:
    case = Case(PAIR, strategy=strategy, settings=settings)
    go_on(case, tmp_path / "cut", 0, 1, 4)
    ends = go_on(case, tmp_path / "cut", 1, 3, 4)
    wanted = go_on(case, tmp_path / "whole", 0, 3, 4)
    assert [furthest(end, other) for (end, _), (other, _) in zip(ends, wanted, strict=True)] == [0.0] * 4
    assert [told for _, told in ends] == [[], [], [], []]


@pytest.mark.parametrize(("strategy", "settings"), [("slowmo", {"sync_every": 2, "slow_every": 1}), MOMENTUM])
def test_vectors_of_a_strategy_are_cut_anew(tmp_path: Path, strategy: str, settings: dict[str, Any]) -> None:
    """Replicas in stages go on as whole ones, and as stages that are cut elsewhere."""
    case, alone = Case(PAIR, strategy=strategy, settings=settings), Case({}, strategy=strategy, settings=settings)
    go_on(case, tmp_path / "cut", 0, 3, 4)
    go_on(alone, tmp_path / "cut", 3, 4, 2)
    ends = go_on(replace(case, chosen={"stages": ["blocks.1"]}), tmp_path / "cut", 4, 6, 4)
    wanted = go_on(alone, tmp_path / "whole", 0, 6, 2)
    told = [furthest(end, wanted[rank // 2][0]) for rank, (end, _) in enumerate(ends)]
    assert max(told) < 1e-9, told
