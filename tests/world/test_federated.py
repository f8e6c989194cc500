"""Clients among real workers: the numbers of the virtual world, and what is left when a worker dies in a round."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import pytest
import torch

from quorate.launch.worker.world import World
from quorate.wire.virtual.world import VirtualWorld
from tests.support.federated_trainings import scene
from tests.support.joined import joined
from tests.support.processes import outcomes_real_world, run_real_world
from tests.support.scene import Trainer

SIZE = 3
CHOICE: dict[str, Any] = {"sampled": 0.6, "local_epochs": 2}


VARIANTS: list[tuple[str, dict[str, Any]]] = [("fed-avg", {}), ("fed-avg", {"secure": True}), ("scaffold", {})]


def task(strategy: str, world: World, **settings: Any) -> list[float]:
    torch.set_num_threads(1)
    return scene(strategy, SIZE, **CHOICE, **settings).play(world).parameters.tolist()


@pytest.mark.parametrize(("strategy", "settings"), VARIANTS, ids=str)
def test_real_workers_come_to_the_numbers_of_virtual_ones(strategy: str, settings: dict[str, Any]) -> None:
    real = run_real_world(SIZE, functools.partial(task, strategy, **settings))
    assert all(end == real[0] for end in real)
    twin = VirtualWorld(SIZE).run(joined(functools.partial(task, strategy, **settings)))[0]
    torch.testing.assert_close(torch.tensor(real[0]), torch.tensor(twin), rtol=1e-4, atol=1e-5)


def dies(trainer: Trainer) -> None:
    if (trainer.rank, trainer.loader.epoch, trainer.place) == (1, 2, 1):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("strategy", "settings"), VARIANTS, ids=str)
def test_the_others_go_on_without_the_clients_of_a_worker_that_died_in_a_round(
    strategy: str, settings: dict[str, Any]
) -> None:
    found = outcomes_real_world(SIZE, functools.partial(task, strategy, before=dies, **settings))
    assert found[1].result is None
    assert found[0].result is not None
    assert found[0].result == found[2].result
    assert torch.tensor(found[0].result).isfinite().all()
