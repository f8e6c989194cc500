"""`World`: what its calls refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld


def refusals(size: int, call: Callable[[quorate.World], Any]) -> list[str]:
    def live(wire: Wire) -> str:
        current.enter(wire, thread_only=True)
        world = quorate.join()
        with pytest.raises(ConfigurationError) as raised:
            call(world)
        return str(raised.value)

    return VirtualWorld(size, timeout=5.0).run(live)


@pytest.mark.parametrize(
    ("argument_of", "words"),
    [
        (lambda rank: torch.zeros(2 + (rank == 1)), "torch.float32 of the shape (3,) on rank 1 and torch.float32 of"),
        (lambda rank: torch.zeros(2, 3 if rank else 0), "of the shape (2, 3) on rank 1 and torch.float32 of the shape"),
        (lambda rank: torch.zeros(6).view((2, 3) if rank == 2 else (3, 2)), "of the shape (2, 3) on rank 2 and"),
        (lambda rank: torch.zeros(2).to(torch.float64 if rank == 2 else torch.float32), "float64 of the shape (2,) on"),
        (lambda rank: torch.zeros(()) if rank == 2 else 1.0, "float32 of the shape () on rank 2 and torch.float64"),
    ],
)
def test_a_mean_of_different_things_is_refused_on_all(argument_of: Callable[[int], Any], words: str) -> None:
    said = refusals(3, lambda world: world.mean(argument_of(world.rank)))
    assert len(set(said)) == 1
    assert said[0].startswith("world.mean was given ")
    assert words in said[0]
