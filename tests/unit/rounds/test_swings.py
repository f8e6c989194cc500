"""Whether losses go up and down beyond chance, so that `adaptive` waits for more workers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from quorate.rounds.choice.choosing import Level, Swing, swings

Draw = Callable[[], float]


def batches(seed: int, width: float = 0.3) -> Draw:
    """What a batch drawn by chance makes of a loss."""
    draw = random.Random(seed)
    return lambda: math.exp(draw.gauss(0, width))


def swinging(step: int, batch: Draw, level: float = 10.0) -> float:
    return level * math.exp(0.7 * math.sin(2 * math.pi * step / 11)) * batch()


def test_a_quorum_that_swings_is_too_small() -> None:
    batch = batches(0)
    some = [Swing.of([swinging(step, batch) for step in range(16)]) for _ in range(3)]
    level, fast = Level(1.0, 0.1), Level(0.3, 0.1)
    assert swings(some, [level, level, level])
    assert not swings(some[:2], [level, level])
    assert not swings(some, [level, level, fast])
    assert not swings([Swing.of([batch() for _ in range(16)]) for _ in range(3)], [level] * 3)
    assert not swings([*some[:2], Swing.of([])], [level] * 3)
