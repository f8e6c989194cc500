"""A worker dies while it copies its replica for a newcomer: another one sends the copy, and the training goes on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.contracts import Wire
from quorate.train.replica_copy import ReplicaCopy
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

SIZE, STEPS = 4, 40
STRATEGIES = ("all-reduce", "quorum", "local-sgd", "hogwild")


@pytest.mark.covering(("strategy", "deaths"), product(STRATEGIES, [1, 2]))
def test_another_worker_sends_the_copy(strategy: str, deaths: int, monkeypatch: pytest.MonkeyPatch) -> None:
    capture, wires, sources = ReplicaCopy.capture, dict[int, Any](), list[int]()

    def dies(self: ReplicaCopy, *, is_whole: bool) -> tuple[dict[str, Any], Sequence[Tensor]]:
        rank = self._place.wire.rank
        if is_whole and rank not in sources:
            sources.append(rank)
            if len(sources) <= deaths:
                wires[rank].crash()
        return capture(self, is_whole=is_whole)

    monkeypatch.setattr(ReplicaCopy, "capture", dies)

    def train(world: quorate.World) -> tuple[int, Tensor]:
        torch.manual_seed(world.rank)
        model = nn.Linear(3, 1)
        plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        optimizer: Any = quorate.distribute(plain, model, strategy, on_death="continue")
        steps = 0
        while optimizer.__dict__["_quorate_worker"].updates < STEPS and steps < STEPS:
            world.wire.clock.sleep(0.01)
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
        optimizer.finish()
        return steps, model.weight.detach().clone()

    def live(wire: Wire) -> tuple[int, Tensor]:
        wires[wire.rank] = wire
        wire.clock.sleep(0.1 if wire.is_newcomer else 0.0)
        return joined(train)(wire)

    outcomes = VirtualWorld(SIZE, joiners=1, timeout=20.0).outcomes(live)
    assert sum(outcome.is_crashed for outcome in outcomes) == deaths and len(sources) > deaths
    assert [outcome.error for outcome in outcomes if not outcome.is_crashed] == [None] * (SIZE + 1 - deaths)
    ends = [outcome.result for outcome in outcomes if outcome.result is not None]
    assert all(torch.equal(weight, ends[0][1]) for _, weight in ends)
    newcomer = outcomes[SIZE].result
    assert newcomer is not None and 0 < newcomer[0] < STEPS
