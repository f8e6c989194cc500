"""Checkpoints of models in shards: resumed to the bit in the same layout, and in any other one."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.processes import run_real_world
from tests.support.sampled import Few
from tests.support.sharded_trainings import Case, Model, kept, kept_alone, kept_by_torch, kept_for_others

LAYOUTS = [(4, 1, 3), (2, 1, 2), (3, 1, 3), (2, 2, 0), (4, 2, 3)]
"""Workers, replicas, and ZeRO; 0: whole replicas."""


def furthest(some: list[Tensor], others: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))


def go_on(case: Case, root: Path, until: int, workers: int, *, shards: bool = True) -> Any:
    torch.set_num_threads(1)
    return run_real_world(workers, partial(kept, case, root, until, shards=shards), 120.0)


@pytest.mark.parametrize(("optimizer", "most"), [("sgd", 1e-6), ("adamw", 2e-5)])
def test_resumed_in_other_shards(tmp_path: Path, optimizer: str, most: float, few: Few) -> None:
    *earlier, last = LAYOUTS
    until = 0
    for workers, replicas, zero in [*few(earlier), last]:
        until += 2
        case = Case(optimizer=optimizer, replicas=replicas, zero=zero or 3)
        ends = go_on(case, tmp_path, until, workers, shards=zero > 0)
        wanted = kept_alone(case, until)
        assert max(furthest(end, wanted) for end, _ in ends) < most, (workers, replicas, zero)
    newest = max(tmp_path.glob("step-*"))
    names = {path.name for path in newest.iterdir()}
    assert {"model.shard-0-of-2.safetensors", "model.shard-1-of-2.safetensors", "rank-3.safetensors"} <= names
    assert not names & {"model.safetensors", "optimizer.safetensors"}
    assert json.loads((newest / "manifest.json").read_text())["optimizers"]["1"]["shards"] == 2


def test_files_for_others(tmp_path: Path) -> None:
    """Written by shards, read by other shards, by whole replicas, and by plain torch."""
    torch.set_num_threads(1)
    case = Case(optimizer="adamw", zero=3)
    file, folder, end = tmp_path / "whole.pt", tmp_path / "folder", tmp_path / "end.pt"
    run_real_world(4, partial(kept_for_others, case, None, 2, [file, folder]), 120.0)
    other = Case(optimizer="adamw", zero=1)
    ends = run_real_world(2, partial(kept_for_others, other, file, 4, [end]), 120.0)
    ends += run_real_world(2, partial(kept_for_others, case, folder, 4, [], shards=False), 120.0)
    wanted = kept_alone(case, 4, gamma=1.0)
    assert max(furthest(one, wanted) for one in ends) < 2e-5
    found = torch.load(end, weights_only=True)
    assert (found["step"], set(found["model"])) == (4, set(Model().state_dict()))
    assert furthest([found["model"][name] for name, _ in Model().named_parameters()], wanted) < 2e-5


def test_states_for_torch_distributed_checkpoint(tmp_path: Path, few: Few) -> None:
    """What `state_dict()` of model and optimizer say goes on in other shards, as whole replicas, and back."""
    torch.set_num_threads(1)
    layouts = [(4, 1, 3), (2, 1, 1), (3, 1, 2), (2, 2, 0), (4, 2, 3)]
    for turn, (workers, replicas, zero) in enumerate(few(layouts)):
        case, until = Case(optimizer="adamw", replicas=replicas, zero=zero or 3), 2 * (turn + 1)
        task = partial(kept_by_torch, case, tmp_path / "kept", until, shards=zero > 0)
        ends = run_real_world(workers, task, 120.0)
        wanted = kept_alone(case, until, gamma=1.0)
        assert max(furthest(end, wanted) for end in ends) < 2e-5, (workers, replicas, zero)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("diloco", {"sync_every": 4, "fragments": 2}),
        ("d-psgd", {}),
        ("all-reduce", {"compress": "top-k", "density": 0.1}),
        ("quorum", {"wait_for": "all", "momentum": "worker", "grace": 5.0}),
    ],
)
def test_resumed_to_the_bit(tmp_path: Path, strategy: str, settings: dict[str, Any]) -> None:
    case = Case(strategy, settings, optimizer="adamw", replicas=2)
    go_on(case, tmp_path / "cut", 3, 4)
    ends = go_on(case, tmp_path / "cut", 7, 4)
    wanted = go_on(case, tmp_path / "whole", 7, 4)
    assert [furthest(end, other) for (end, _), (other, _) in zip(ends, wanted, strict=True)] == [0.0] * 4
    assert [told for _, told in ends] == [[], [], [], []]


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("slowmo", {"sync_every": 2, "slow_every": 1}),
        ("quorum", {"wait_for": "all", "momentum": "worker", "grace": 5.0}),
    ],
)
def test_vectors_of_a_strategy_are_cut_anew(tmp_path: Path, strategy: str, settings: dict[str, Any]) -> None:
    """Replicas in shards go on as whole ones, and as shards again, with the velocity of SlowMo, or the momentum of each
    replica's own gradients."""
    case = Case(strategy, settings, replicas=2)
    go_on(case, tmp_path / "cut", 3, 4)
    go_on(case, tmp_path / "cut", 5, 2, shards=False)
    ends = go_on(case, tmp_path / "cut", 9, 4)
    wanted = go_on(case, tmp_path / "whole", 9, 2, shards=False)
    told = [furthest(end, wanted[rank // 2][0]) for rank, (end, _) in enumerate(ends)]
    assert max(told) < 1e-6, told


@pytest.mark.parametrize("replicas", [1, 2])
def test_all_save_where_one_asks(tmp_path: Path, replicas: int) -> None:
    case = Case(optimizer="adamw", replicas=replicas)
    run_real_world(4, partial(kept, case, tmp_path, 4, first_asks=2), 120.0)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000003"]
    ends = go_on(case, tmp_path, 6, 4)
    assert max(furthest(end, kept_alone(case, 6)) for end, _ in ends) < 2e-5
