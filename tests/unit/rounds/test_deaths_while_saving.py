"""Workers that die while checkpoints are made: those that are left complete them, and a new training goes on there."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.checkpoint.folder import complete_ones, read_manifest, verify
from tests.support.scene import Scene, Trainer, parameters, pause, squares
from tests.unit.rounds.test_laws import net, sgd, speeds

STEPS = 12


def save_at_the_end(trainer: Trainer) -> None:
    pause(trainer)
    quorate.save()


def go_on(trainer: Trainer) -> torch.Tensor:
    """A few steps from a checkpoint, or the whole training."""
    pause(trainer.train(trainer.step + 3 if trainer.began else STEPS))
    return trainer.finish().parameters


def planned(seed: int, root: Path) -> Scene:
    """One training in which some die, with a save in every third step, and one when all have come to the end."""
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5])
    victims = draw.sample(range(size), draw.choice([1, 1, size - 1]))
    deaths = {rank: draw.randint(1, draw.choice([20, 60, 150])) for rank in victims}
    fields: Any = {"deaths": deaths, "pause": speeds(draw, size), "model": net, "make": sgd, "loss": squares}
    strategy = draw.choice(["quorum", "quorum", "all-reduce", "local-sgd"])
    settings: dict[str, dict[str, Any]] = {
        "quorum": {"wait_for": draw.choice(["all", "majority", 1])},
        "all-reduce": {"on_death": "continue"},
        "local-sgd": {"sync_every": 2},
    }
    kept: Any = {"root": root, "saves": range(3, STEPS + 1, 3), "last": save_at_the_end}
    return Scene(strategy, size, steps=STEPS, world={"seed": seed}, **fields, **kept, **settings[strategy])


@pytest.mark.seeds(3, 6)
def test_checkpoints_are_completed_by_those_that_are_left(tmp_path: Path, seed: int) -> None:
    plan = planned(seed, tmp_path)
    found = plan.survivors(parameters)
    kept = complete_ones(tmp_path)
    for folder in kept:
        verify(folder)
    assert set(read_manifest(kept[0])["ranks"]) >= set(found)
    again = plan.but(size=len(found), deaths={}, saves=(), loads=True).act(go_on)
    assert all(torch.equal(one, again[0]) for one in again)
