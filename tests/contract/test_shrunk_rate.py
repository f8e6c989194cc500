"""`shrunk_rate="scaled"`: steps without a dead worker have the rate that fits their batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.world import VirtualWorld
from tests.support.faulty import Faulty
from tests.support.joined import joined

SETTINGS: dict[str, dict[str, Any]] = {"all-reduce": {"on_death": "continue"}, "quorum": {"wait_for": "all"}}
KINDS: dict[str, Any] = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}
STEPS, DIES, SIZE, RATE = 6, 3, 4, 0.1


def train(strategy: str, kind: str, faulty: Faulty, world: quorate.World) -> list[Tensor]:
    """The step lengths. All gradients are equal, so each step is the rate times a factor of the optimizer's."""
    model = nn.Linear(1, 1, bias=False)
    plain = KINDS[kind](model.parameters(), lr=RATE)
    chosen = {**SETTINGS[strategy], "shrunk_rate": "scaled"}
    optimizer: Any = quorate.distribute(plain, model, strategy, **chosen)
    lengths = []
    for step in range(STEPS):
        before = model.weight.detach().clone()
        optimizer.zero_grad()
        if (world.rank, step) == (SIZE - 1, DIES):
            faulty.crash()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        lengths.append((before - model.weight.detach()).squeeze())
        assert optimizer.param_groups[0]["lr"] == RATE
    optimizer.finish()
    return lengths


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", SETTINGS)
def test_steps_without_a_dead_worker_are_scaled(strategy: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    def live(wire: Wire) -> list[Tensor]:
        faulty = Faulty(wire, [])
        return joined(partial(train, strategy, kind, faulty))(faulty)

    outcomes = VirtualWorld(SIZE, timeout=20.0).outcomes(live)
    factor = {"SGD": 3 / 4, "Adam": (3 / 4) ** 0.5}[kind]
    expected = torch.tensor([RATE * (factor if step >= DIES else 1.0) for step in range(STEPS)])
    for outcome in outcomes[:-1]:
        assert outcome.error is None and outcome.result is not None, outcome.error
        torch.testing.assert_close(torch.stack(outcome.result), expected, atol=1e-6, rtol=0)
    sentence = f"steps have the batches of 3 of 4 workers now; learning rates times {factor:.3g}"
    assert capsys.readouterr().err.count(sentence) == 1


class Unknown(torch.optim.Optimizer):
    """Belongs to no known kind."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": RATE})


def test_an_unknown_optimizer_has_no_rule() -> None:
    def task(world: quorate.World) -> None:
        model = nn.Linear(1, 1)
        settings: dict[str, Any] = {"on_death": "continue", "shrunk_rate": "scaled"}
        quorate.distribute(Unknown(model.parameters()), model, "all-reduce", **settings)

    with pytest.raises(ConfigurationError, match="scaling rule of Unknown is not known"):
        VirtualWorld(2).run(joined(task))
