"""A training of real processes that is pruned, saved, and resumed by another number of workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

import quorate
from tests.support.processes import run_real_world
from tests.support.pruned_trainings import Pruned


def tensors_of(training: Pruned, world: quorate.World) -> tuple[Tensor, Tensor]:
    end = training.train(world)
    assert end.moments_are_zero
    return end.masks, end.parameters


@pytest.mark.parametrize("strategy", ["all-reduce", "quorum"])
def test_masks_go_on_with_another_number_of_workers(strategy: str, tmp_path: Path) -> None:
    saving = Pruned(strategy=strategy, root=tmp_path, saves=8, steps=9, pause=0.0)
    before = run_real_world(3, partial(tensors_of, saving))
    resuming = Pruned(strategy=strategy, root=tmp_path, loads=True, pause=0.0)
    after = run_real_world(2, partial(tensors_of, resuming))
    masks, _ = before[0]
    assert int(masks.sum()) == 48
    assert all(torch.equal(own, masks) for own, _ in (*before, *after))
    assert torch.equal(after[0][1], after[1][1])
