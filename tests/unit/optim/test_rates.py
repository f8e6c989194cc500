"""Rates against values worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core.errors import ConfigurationError
from quorate.optim.rates import Rates, scale_of, scaling_of

HAND: list[tuple[dict[str, Any], list[tuple[float, float]]]] = [
    ({"warm_up_examples": 100, "scale": 9, "decay": "constant"}, [(0, 1), (25, 3), (50, 5), (100, 9), (2000, 9)]),
    ({"warm_up_examples": 100, "scale": 8, "begin": 0, "decay": "constant"}, [(0, 0), (50, 4), (99, 7.92)]),
    (
        {"warm_up": "constant", "warm_up_examples": 100, "scale": 8, "decay": "constant"},
        [(0, 1), (99.9, 1), (100, 8)],
    ),
    ({"warm_up": "none", "warm_up_examples": 100, "scale": 8, "decay": "constant"}, [(0, 8), (50, 8)]),
    ({"decay": "step", "milestones": (300, 600), "scale": 2}, [(0, 2), (299, 2), (300, 0.2), (599, 0.2), (600, 0.02)]),
    (
        {"decay": "polynomial", "warm_up_examples": 200, "scale": 2},
        [(200, 2), (600, 0.5), (1000, 0), (1200, 0)],  # (1 - t)^2, t = 0, 0.5, 1
    ),
    ({"decay": "polynomial", "power": 1, "end": 0.1}, [(0, 1), (500, 0.55), (1000, 0.1)]),
    ({"decay": "cosine", "scale": 4}, [(0, 4), (250, 3.4142135623730951), (500, 2), (1000, 0), (1500, 0)]),
    ({"decay": "cosine", "end": 0.5}, [(500, 0.75), (1000, 0.5)]),
    (
        {"decay": "warmup-stable-decay", "warm_up_examples": 100, "decay_examples": 400, "scale": 2, "end": 0.1},
        [(50, 1.5), (100, 2), (600, 2), (800, 1.1), (1000, 0.2)],
    ),
    ({"decay": "warmup-stable-decay"}, [(800, 1), (900, 0.5), (1000, 0)]),  # a fifth, unless told
]


@pytest.mark.parametrize(("how", "values"), HAND)
def test_values_by_hand(how: dict[str, Any], values: list[tuple[float, float]]) -> None:
    rates = Rates(total=1000, **how)
    for examples, factor in values:
        assert rates.at(examples) == pytest.approx(factor, abs=1e-12), examples


@pytest.mark.parametrize(("rule", "scale"), [("linear", 16.0), ("sqrt", 4.0), ("none", 1.0)])
def test_scales(rule: Any, scale: float) -> None:
    assert scale_of(rule, 512, 32) == scale


@pytest.mark.parametrize(
    ("names", "rule"),
    [
        (["SGD"], "linear"),
        (["LARS"], "linear"),
        (["AdamW", "Adam"], "sqrt"),
        (["LAMB"], "sqrt"),
        (["Mine", "SGD"], "linear"),
    ],
)
def test_the_usual_rule(names: list[str], rule: str) -> None:
    assert scaling_of(names) == rule


def test_an_optimizer_of_which_none_is_known() -> None:
    with pytest.raises(ConfigurationError, match='the scaling rule of Mine is not known; give scaling="linear"'):
        scaling_of(["Mine", "object"])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"total": 0}, "total_examples must be above 0"),
        ({"warm_up_examples": 1000}, "less than total_examples"),
        ({"decay": "step"}, 'milestones, in examples, go with decay="step"'),
        ({"milestones": (100,)}, 'milestones, in examples, go with decay="step"'),
        ({"decay": "step", "milestones": (200, 100)}, "ascending"),
        ({"decay": "warmup-stable-decay", "decay_examples": 1001}, "no more than what the warm-up leaves"),
        ({"decay_examples": 10}, 'decay_examples goes with decay="warmup-stable-decay"'),
        ({"end": -1}, "end must be a number"),
        ({"decay": "linear"}, 'decay "linear"'),
        ({"warm_up": "slow"}, 'warm_up "slow"'),
    ],
)
def test_what_does_not_fit_is_said(how: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Rates(**{"total": 1000, **how})
