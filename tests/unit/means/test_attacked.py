"""Attacks: what wrong workers send, and what the others get."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quorate.aggregation.attacks import ATTACKS, attack_from
from quorate.buckets.flat import layout_of
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat, header_in
from quorate.means.reduction import reduction_of
from quorate.wire.virtual.world import VirtualWorld
from tests.support.scene import Scene

LAYOUT = layout_of([("a", torch.zeros(3)), ("b", torch.zeros(2))], header=1, part_bytes=12, first_part_bytes=12)


def sums(attack: str, steps: int = 1, size: int = 4) -> list[list[float]]:
    """Return the sum of each step, where worker r sends r + 1 + 10 step in each number; headers are not changed."""

    def task(wire: Wire) -> list[list[float]]:
        reducer = reduction_of({"attack": attack}).reducer(LAYOUT, wire, 0)
        sums_of_steps = []
        for step in range(steps):
            x = Flat.zeros(LAYOUT)
            for part in x.parts:
                part.fill_(wire.rank + 1.0 + 10 * step)
            header_in(x).fill_(1.0)
            sent = reducer.start(x).wait()
            assert header_in(sent).tolist() == [size]
            numbers = torch.cat([sent.segment(0), sent.segment(1)])
            assert len(set(map(str, numbers.tolist()))) == 1 or attack.startswith("noise")
            sums_of_steps.append(float(numbers[0]))
        return [sums_of_steps]

    results = VirtualWorld(size).run(task)
    assert all(str(sums) == str(results[0]) for sums in results)
    return results[0]


@pytest.mark.parametrize(
    ("attack", "wanted"),
    [
        ("sign-flip", 1 + 2 + 3 - 40),
        ("sign-flip:2", 1 + 2 - 30 - 40),
        ("sign-flip:count=1,scale=1", 1 + 2 + 3 - 4),
        ("constant:2,scale=7", 1 + 2 + 2 * 7 / 4),
        ("inner-product", 6 - 10 * 2),
        ("mimic:2", 1 + 2 + 1 + 1),
        ("little-is-enough:1,scale=2", 6 + 2 - 2 * (2 / 3) ** 0.5),
        ("sign-flip:0", 10),
    ],
)
def test_sums(attack: str, wanted: float) -> None:
    assert sums(attack) == [[pytest.approx(wanted)]]


def test_what_was_sent_before() -> None:
    assert sums("replayed:1,steps=2", steps=4)[0] == [10, 50, 10 + 3 * 20 - 0, 50 + 3 * 20]
    assert sums("delayed:1,steps=3", steps=4)[0] == [10, 50 - 10, 90 - 20, 130 - 20]


def test_noise_and_nan() -> None:
    assert str(sums("nan")) == "[[nan]]"
    assert abs(sums("noise:1,scale=100")[0][0] - 6) > 1


def errors(size: int = 7, **settings: Any) -> list[float]:
    """How far each worker's weights are from the solution after 30 steps."""
    chosen = {"strategy": "all-reduce", "steps": 30, **settings}
    return Scene(size=size, **chosen).run(lambda trainer: (trainer.model.weight - 1).square().sum().item())


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name != "mimic"])
def test_a_rule_learns_under_every_attack_and_the_mean_does_not(attack: str) -> None:
    """Replayed and delayed gradients do the mean no harm here, nor does a little of one worker."""

    def error(**settings: Any) -> float:
        found = errors(**settings)
        assert len(set(map(str, found))) == 1
        return found[0]

    assert error(strategy="robust", reduce="trimmed-mean", attack=attack, momentum=0.5) < 0.3
    if attack not in ("replayed", "delayed", "little-is-enough"):
        assert not error(attack=attack) < 0.5


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        ("sign-flop", 'unknown attack "sign-flop"; did you mean "sign-flip"'),
        ("sign-flip:x", '"x" in the attack "sign-flip:x" is not a setting'),
        ("sign-flip:count=-1", "sign-flip: count is -1"),
        ("delayed:1,steps=0", "steps 0"),
    ],
)
def test_attacks_that_cannot_be(attack: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        attack_from(attack)
    with pytest.raises(ConfigurationError, match=words):
        reduction_of({"attack": attack})


@pytest.mark.parametrize("strategy", ["quorum", "local-sgd", "d-psgd"])
def test_where_there_is_nothing_to_attack(strategy: str) -> None:
    with pytest.raises(ConfigurationError, match='attack="nan" cannot be combined with'):
        errors(3, strategy=strategy, attack="nan")
