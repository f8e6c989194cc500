"""Rounds whose vectors become one by an aggregation rule: stragglers and wrong gradients at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.aggregation import rules
from quorate.aggregation.rule import aggregated
from quorate.buckets.flat import layout_of
from quorate.core.codec import Draw
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat, header_in
from quorate.rounds.combining import ByRule, Combined
from tests.support.scene import Scene, loss_in_common, spoiling

LAYOUT = layout_of([("a", torch.zeros(5, 3)), ("b", torch.zeros(7))], header=2, part_bytes=40, first_part_bytes=40)
SIZE = 8


def vectors(weights: dict[int, float]) -> tuple[dict[int, Flat], dict[int, Tensor]]:
    """What workers give, as rounds take it, and their gradients."""
    given, gradients = dict[int, Flat](), dict[int, Tensor]()
    for rank, weight in weights.items():
        generator = torch.Generator().manual_seed(rank)
        given[rank] = Flat.zeros(LAYOUT)
        for part in given[rank].bare().parts:
            part.copy_(torch.randn(part.shape, generator=generator))
        gradients[rank] = torch.cat([part.clone() for part in given[rank].bare().parts])
        given[rank].mul_(weight / SIZE)
        header_in(given[rank]).copy_(torch.tensor([weight, 1.0]))
    return given, gradients


@pytest.mark.parametrize("name", [name for name in rules if name not in ("centered-clipping", "majority", "mean")])
def test_a_round_has_what_the_rule_makes_of_gradients_that_each_count_once(name: str) -> None:
    rule = rules.get(name)(f=1)
    weights = {rank: 1.0 + rank % 2 for rank in range(rule.least)}
    given, gradients = vectors(weights)
    found = ByRule(rule, SIZE, 7)(given, weights, 3).vector
    assert found is not None
    wanted = aggregated(rule, torch.stack(list(gradients.values())), draw=Draw(seed=7, round=3))
    mean = torch.cat(list(found.bare().parts)) * SIZE / sum(weights.values())
    torch.testing.assert_close(mean, wanted, rtol=1e-5, atol=1e-6)
    assert header_in(found).tolist() == [sum(weights.values()), len(weights)]


def test_of_fewer_than_the_rule_needs_nothing_comes() -> None:
    given, _ = vectors({0: 1.0, 2: 1.0})
    assert ByRule(rules.get("median")(f=1), SIZE, 0)(given, {0: 1.0, 2: 1.0}, 1) == Combined()


def test_what_is_not_finite_counts_as_wrong() -> None:
    weights = dict.fromkeys(range(4), 1.0)
    given, gradients = vectors(weights)
    given[2].parts[0][0] = torch.nan
    combined = ByRule(rules.get("trimmed-mean")(f=1), SIZE, 0)(given, weights, 1)
    found = combined.vector
    assert found is not None and combined.excluded == ((2, "not finite"),)
    wanted = torch.stack([gradients[rank] for rank in (0, 1, 3)]).mean(0)
    torch.testing.assert_close(torch.cat(list(found.bare().parts)) * SIZE / 4, wanted, rtol=1e-5, atol=1e-6)


def test_whom_a_rule_gives_no_weight_is_told() -> None:
    weights = dict.fromkeys((0, 2, 3, 4, 5), 1.0)
    given, _ = vectors(weights)
    for part in given[3].bare().parts:
        part.mul_(1000)
    krum = ByRule(rules.get("krum")(f=1), SIZE, 0)(given, weights, 1)
    assert len(krum.excluded) == 4 and {why for _, why in krum.excluded} == {"no weight"}
    assert 3 in dict(krum.excluded)
    assert ByRule(rules.get("median")(f=1), SIZE, 0)(given, weights, 1).excluded == ((3, "far"),)


def losses(wrong: Callable[[Tensor], Tensor], **settings: Any) -> list[float]:
    """The losses in the end; rank 1's gradients are wrong, and rank 2 is late in most steps."""
    world = {"compute": lambda rank, _: 0.05 if rank == 2 else 0.01}
    chosen = {"model": (4, 8, 1), "heavy": 0.9, "steps": 30, "world": world, **settings}
    return Scene(size=6, begin=spoiling({1: wrong}), **chosen).run(loss_in_common)


@pytest.mark.parametrize("reduce", ["median", "krum", "geometric-median"])
def test_a_quorum_goes_on_with_stragglers_and_wrong_gradients(reduce: str) -> None:
    settings: dict[str, Any] = {"strategy": "quorum", "wait_for": 5, "on_nonfinite": "ignore"}
    found = losses(lambda g: -20 * g, reduce=reduce, **settings)
    assert len(set(found)) == 1 and found[0] < 1.0, found
    assert not losses(lambda g: -20 * g, **settings)[0] < 5, "a sum breaks"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"wait_for": 2, "reduce": "median:f=1"},
            "Median takes f below half of the vectors: of 2 vectors up to 0 may be wrong, and f is 1",
        ),
        ({"reduce": "centered-clipping"}, "it starts from its latest result, which exists only"),
        (
            {"reduce": "median", "compress": "half"},
            'reduce="median" beside compress="half" cannot be combined with quorum: a rule',
        ),
        ({"reduce": "ring"}, 'reduce="ring" cannot be combined with quorum'),
    ],
)
def test_what_does_not_go_with_rounds(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        losses(torch.neg, strategy="quorum", **settings)


def test_a_rule_takes_wrong_outer_gradients() -> None:
    settings: dict[str, Any] = {"strategy": "diloco", "sync_every": 5, "outer_rate": 1.0, "outer_momentum": 0.0}
    found = losses(lambda g: -20 * g, reduce="median", **settings)
    assert len(set(found)) == 1 and found[0] < 2.0, found
    assert not losses(lambda g: -20 * g, **settings)[0] < 5, "the mean breaks"
