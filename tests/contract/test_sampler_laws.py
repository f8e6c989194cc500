"""What a sampler draws is computed once, under every family of strategies, also with unequal workers."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch

import quorate
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.ordinary_loops import FAMILIES

DATA = [(torch.full((3,), float(index)), index) for index in range(36)]
KINDS: dict[str, dict[str, Any]] = {
    "sampler": {"batch_size": 3, "sampler": list(range(35, -1, -1))},
    "batch sampler": {"batch_sampler": [[index, index + 1, index + 2] for index in range(0, 36, 3)]},
    "tokens": {"tokens_per_batch": 9, "lengths": [3] * 36},
}


@pytest.mark.covering(("strategy", "kind", "size"), product(FAMILIES, KINDS, [1, 2, 3]))
def test_each_example_is_computed_once(strategy: Any, kind: str, size: int) -> None:
    def live(world: quorate.World) -> list[int]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=1e-4), model, strategy)
        seen: list[int] = []
        for inputs, indices in quorate.loader(DATA, **KINDS[kind]):
            world.wire.clock.sleep(0.01 * (1 + world.rank))
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen += indices.tolist()
        optimizer.finish()
        return seen

    workers = VirtualWorld(size).run(joined(live))
    assert Counter(index for worker in workers for index in worker) == Counter(range(36))
