"""Gradients that codecs write small, among real processes: the bits of the virtual world, also between hosts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from quorate.launch.worker.world import World
from quorate.means.reduction import NONE, compressing
from quorate.wire.real.shared import is_possible
from quorate.wire.virtual.world import VirtualWorld
from tests.support.hosts import are_possible, hosts
from tests.support.joined import joined
from tests.support.processes import run_real_world
from tests.support.sampled import Few
from tests.support.scene import Scene, Trainer

CHOICES: dict[str, dict[str, Any]] = {
    **{name: {"compress": name} for name in compressing() if name not in (NONE, "auto")},  # which measures
    "two-phase": {"compress": "top-k", "reduce": "two-phase", "density": 0.1},
    "hierarchical": {"compress": "top-k", "reduce": "hierarchical", "density": 0.1},
    "adasum": {"reduce": "adasum"},
    "adasum where others outlive a death": {"reduce": "adasum", "on_death": "continue"},
    "where others outlive a death": {"compress": "top-k", "on_death": "continue"},
    "a rule over codes": {"reduce": "geometric-median", "compress": "top-k", "density": 0.1},
    "momenta by a rule over codes": {
        "strategy": "robust",
        "reduce": "centered-clipping",
        "compress": "qsgd",
        "on_death": "continue",
    },
    "rounds": {"strategy": "quorum", "wait_for": "all", "grace": 5.0, "compress": "top-k", "density": 0.1},
    "learners": {
        "strategy": "decoupled-diloco",
        "sync_every": 4,
        "overlap": 0,
        "wait_for": "all",
        "grace": 5.0,
        "compress": "top-k",
        "density": 0.1,
    },
    "differences": {"strategy": "choco-sgd", "compress": "top-k", "density": 0.1},
    "steps of neighbours": {"strategy": "dcd-psgd", "compress": "qsgd"},
    "estimates of neighbours": {"strategy": "ecd-psgd", "compress": "qsgd"},
    "one-bit momenta": {"strategy": "one-bit-adam", "freeze": 4},
    "accumulated momenta": {
        "strategy": "zero-one-adam",
        "freeze": 4,
        "doubles_after": 2,
        "double_every": 4,
        "longest": 2,
    },
    "one-bit momenta where others outlive a death": {"strategy": "one-bit-lamb", "freeze": 4, "on_death": "continue"},
    "deltas": {"strategy": "diloco", "sync_every": 4, "compress": "half", "fragments": 2},
}
STEPS = 14


def weighed(trainer: Trainer) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1000 * trainer.step + trainer.rank)
    return (trainer.model(trainer.draw(8)) * torch.randn(8, 30, generator=draw).exp()).square().mean()


def trained(choice: str, world: World) -> str:
    """A digest of the parameters' bits after some steps."""
    settings = {"name": choice, **CHOICES[choice]}
    fields: Any = {"model": (40, 90, 30), "heavy": 0.9, "steps": STEPS, "loss": weighed, "settings": settings}
    end = Scene(settings.pop("strategy", "all-reduce"), **fields).play(world).parameters
    return hashlib.sha256(end.numpy().tobytes()).hexdigest()


def all_of(choices: Sequence[str], world: World) -> dict[str, str]:
    torch.set_num_threads(1)
    return {choice: trained(choice, world) for choice in choices}


def virtual(size: int, choice: str) -> list[str]:
    return VirtualWorld(size).run(joined(lambda world: trained(choice, world)))


def compared(told: list[dict[str, str]], same_as: Callable[[str], list[str]]) -> None:
    for choice in told[0]:
        assert len({one[choice] for one in told}) == 1, f"{choice}: replicas differ"
        assert {one[choice] for one in told} == set(same_as(choice)), f"{choice}: not the bits of the virtual world"


@pytest.mark.skipif(not is_possible(), reason="the backends add in an order of their own")
@pytest.mark.parametrize("size", [2, 3])
def test_real_processes_have_the_bits_of_the_virtual_world(size: int, few: Few) -> None:
    torch.set_num_threads(1)
    compared(run_real_world(size, partial(all_of, few(list(CHOICES)))), lambda choice: virtual(size, choice))


@pytest.mark.on_hosts
@pytest.mark.skipif(not (are_possible() and is_possible()), reason="needs root on Linux, to make network namespaces")
def test_replicas_are_equal_between_hosts(few: Few) -> None:
    with hosts(2) as found:
        told = run_real_world(3, partial(all_of, few(list(CHOICES))), on=[found[0], found[0], found[1]])
    assert all(one == told[0] for one in told)
