"""Every optimizer for large batches goes with every strategy: replicas end equal, and the loss has fallen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from quorate.core.errors import ConfigurationError
from quorate.optim import LAMB, LARS
from tests.support.every_strategy import NAMES, OF_ONE_HOST
from tests.support.scene import Scene, loss_in_common

SIZE, STEPS = 3, 12
OPTIMIZERS: dict[str, Callable[[Any, float], torch.optim.Optimizer]] = {
    "momentum": lambda ps, share: torch.optim.SGD(ps, lr=0.02 * share, momentum=0.9),
    "adagrad": lambda ps, share: torch.optim.Adagrad(ps, lr=0.1 * share),
    "adadelta": lambda ps, share: torch.optim.Adadelta(ps, lr=2.0 * share),
    "adam": lambda ps, share: torch.optim.Adam(ps, lr=0.03 * share),
    "lars": lambda ps, share: LARS(ps, lr=0.02 * share, coefficient=1.0, momentum=0.5, weight_decay=1e-3),
    "lamb": lambda ps, share: LAMB(ps, lr=0.05 * share, weight_decay=1e-3),
}


def trained(name: str, optimizer: str) -> list[tuple[float, float, torch.Tensor]]:
    """By rank: the loss on common data before and after, and the parameters."""
    make = partial(OPTIMIZERS[optimizer], share=1 / SIZE if name in OF_ONE_HOST else 1.0)
    steps = 2 * STEPS if name == "streaming-diloco" else STEPS  # whose outer steps come later
    fields: dict[str, Any] = {"model": (4, 6, 1), "make": make, "steps": steps, "seed": "rank", "world": {"seed": 1}}
    scene = Scene(name, SIZE, begin=lambda trainer: trainer.seen.append(loss_in_common(trainer)), **fields)
    return scene.run(lambda trainer: (trainer.seen[0], loss_in_common(trainer), trainer.parameters))


ONLY = {"dana": "momentum", "one-bit-adam": "adam", "one-bit-lamb": "lamb", "zero-one-adam": "adam"}
"""The strategies that are for one optimizer."""
CASES = [(name, optimizer) for name in NAMES for optimizer in OPTIMIZERS if ONLY.get(name, optimizer) == optimizer]


@pytest.mark.covering(("name", "optimizer"), CASES)
def test_replicas_end_equal_and_have_learnt(name: str, optimizer: str) -> None:
    ends = trained(name, optimizer)
    for before, after, parameters in ends:
        assert after < 0.9 * before
        assert torch.equal(parameters, ends[0][2])


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "momentum"])
def test_dana_is_for_sgd_and_says_so(optimizer: str) -> None:
    with pytest.raises(ConfigurationError, match=r'momentum="worker" is for torch.optim.SGD'):
        trained("dana", optimizer)


@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
def test_a_round_of_one_of_three_workers_is_a_third_of_a_step(optimizer: str) -> None:
    """At such a small rate what all have moved is the same, however many workers a round takes in."""

    def model() -> nn.Module:
        return nn.ParameterList([torch.full((4, 4), 3.0), torch.full((4,), 3.0)])

    def make(ps: Any) -> torch.optim.Optimizer:
        return LARS([*ps], lr=1e-4, coefficient=1.0) if optimizer == "lars" else LAMB([*ps], lr=1e-4)

    def moved(name: str) -> list[float]:
        """How far a layer, and a vector, have come."""
        loss, pause = (lambda t: sum(p.sum() for p in t.model)), (lambda rank, step: 0.01 * (1 + rank))
        fields: dict[str, Any] = {"model": model, "make": make, "loss": loss, "pause": pause, "steps": 30}
        return Scene(name, SIZE, **fields).run(lambda t: [float((3.0 - p.detach()).mean()) for p in t.model])[0]

    assert moved("eager-solo") == pytest.approx(moved("all-reduce"), rel=0.05)
