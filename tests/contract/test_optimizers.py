"""Every optimizer for large batches goes with every strategy: replicas end equal, and the loss has fallen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.optim import LAMB, LARS
from quorate.wire.virtual.world import VirtualWorld
from tests.support.every_strategy import NAMES, OF_ONE_HOST
from tests.support.joined import joined

SIZE, STEPS = 3, 12
OPTIMIZERS: dict[str, Callable[[Any, float], torch.optim.Optimizer]] = {
    "momentum": lambda ps, share: torch.optim.SGD(ps, lr=0.02 * share, momentum=0.9),
    "adagrad": lambda ps, share: torch.optim.Adagrad(ps, lr=0.1 * share),
    "adadelta": lambda ps, share: torch.optim.Adadelta(ps, lr=2.0 * share),
    "adam": lambda ps, share: torch.optim.Adam(ps, lr=0.03 * share),
    "lars": lambda ps, share: LARS(ps, lr=0.02 * share, coefficient=1.0, momentum=0.5, weight_decay=1e-3),
    "lamb": lambda ps, share: LAMB(ps, lr=0.05 * share, weight_decay=1e-3),
}
Ends = list[tuple[float, float, list[torch.Tensor]]]


def trained(name: str, optimizer: str, *, steps: Sequence[int] = (STEPS,) * SIZE) -> Ends:
    """By rank: the loss on common data before and after, and the parameters."""

    @joined
    def live(world: quorate.World) -> tuple[float, float, list[torch.Tensor]]:
        torch.manual_seed(world.rank)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
        share = 1 / world.size if name in OF_ONE_HOST else 1.0
        made: Any = quorate.distribute(OPTIMIZERS[optimizer](model.parameters(), share), model, name)
        common = torch.randn(64, 4, generator=torch.Generator().manual_seed(9))

        def loss(x: torch.Tensor) -> torch.Tensor:
            return (model(x) - x.sum(1, keepdim=True)).square().mean()

        before = loss(common).item()
        draw = torch.Generator().manual_seed(world.rank)
        for _ in range(steps[world.rank]):
            made.zero_grad()
            loss(torch.randn(8, 4, generator=draw)).backward()
            made.step()
        made.finish()
        return before, loss(common).item(), [p.detach() for p in model.parameters()]

    return VirtualWorld(SIZE, seed=1).run(live)


CASES = [(name, optimizer) for name in NAMES for optimizer in OPTIMIZERS if name != "dana" or optimizer == "momentum"]


@pytest.mark.covering(("name", "optimizer"), CASES)
def test_replicas_end_equal_and_have_learnt(name: str, optimizer: str) -> None:
    ends = trained(name, optimizer)
    for before, after, parameters in ends:
        assert after < 0.9 * before
        assert all(torch.equal(p, q) for p, q in zip(parameters, ends[0][2], strict=True))


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "momentum"])
def test_dana_is_for_sgd_and_says_so(optimizer: str) -> None:
    with pytest.raises(ConfigurationError, match=r'momentum="worker" is for torch.optim.SGD'):
        trained("dana", optimizer)


@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
def test_a_round_of_one_of_three_workers_is_a_third_of_a_step(optimizer: str) -> None:
    """At such a small rate what all have moved is the same, however many workers a round takes in."""

    def moved(name: str) -> list[float]:
        """How far a layer, and a vector, have come."""

        @joined
        def live(world: quorate.World) -> list[float]:
            ps = [nn.Parameter(torch.full((4, 4), 3.0)), nn.Parameter(torch.full((4,), 3.0))]
            kind: Any = LARS(ps, lr=1e-4, coefficient=1.0) if optimizer == "lars" else LAMB(ps, lr=1e-4)
            made: Any = quorate.distribute(kind, nn.ParameterList(ps), name)
            for _ in range(30):
                world.wire.clock.sleep(0.01 * (1 + world.rank))
                made.zero_grad()
                sum(p.sum() for p in ps).backward()
                made.step()
            made.finish()
            return [float((3.0 - p.detach()).mean()) for p in ps]

        return VirtualWorld(SIZE, seed=1).run(live)[0]

    assert moved("eager-solo") == pytest.approx(moved("all-reduce"), rel=0.05)
