"""What an outer gradient counts by its age: cosine-gated decay, before it enters the outer optimizer."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.quorums import rounds
from quorate.rounds.log import Round
from quorate.rounds.terms import Agreed
from quorate.strategies.parts.learners import Learner, deltas_of
from tests.support.local_trainings import net
from tests.support.scene import flat
from tests.unit.strategies.test_decoupled_diloco import are_equal, common, ledger, scene, trained, uneven

CUTOFF, ALPHA, RATE, BETA = 3.0, 0.2, 0.02, 0.8
GATED: dict[str, Any] = {"late": "cosine", "late_cutoff": CUTOFF, "late_alpha": ALPHA}
ADAM: dict[str, Any] = {"outer": "adam", "outer_rate": RATE, "outer_momentum": BETA, **GATED}
WHO: dict[str, dict[str, Any]] = {
    "async-local-sgd": {"sync_every": 4},
    "decoupled-diloco": {"sync_every": 4, "wait_for": 1, "overlap": 1, "averaging": "mean", "divide_by": "arrived"},
}


def sigma(age: int) -> float:
    return (1 + math.cos(math.pi * age / CUTOFF)) / 2 * math.exp(-ALPHA * age) if age < CUTOFF else 0.0


def adam(gradients: list[Tensor], x: Tensor) -> Tensor:
    """Where Adam comes to from `x`, by its equations."""
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    for step, g in enumerate(gradients, 1):
        m, v = BETA * m + (1 - BETA) * g, 0.99 * v + 0.01 * g * g
        x = x - RATE * (m / (1 - BETA**step)) / ((v / (1 - 0.99**step)).sqrt() + 1e-3)
    return x


def test_a_gate_is_one_at_first_and_zero_from_the_cutoff_on() -> None:
    agreed = Agreed(size=2, late_weight="gated", late_cutoff=4.0, late_alpha=0.5)
    found = [agreed.weight_of(age) for age in range(7)]
    assert found[0] == 1.0 and found[4:] == [0.0] * 3
    assert found[2] == pytest.approx(0.5 * math.exp(-1.0))
    assert found[1] == pytest.approx((1 + math.sqrt(0.5)) / 2 * math.exp(-0.5))


@pytest.mark.parametrize("strategy", WHO)
def test_what_is_late_enters_adam_by_its_age(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The common point is where Adam comes to, by hand, on what rounds say of who was in them, and how late."""
    taken: dict[int, Round] = {}
    ways: dict[tuple[int, int], tuple[float, Tensor]] = {}
    mean_of_fragments, was_handed_in, size = rounds.mean_of_fragments, Learner.was_handed_in, 3

    def noting(one: Round, *rest: Any) -> Mean | None:
        taken[one.number] = one
        return mean_of_fragments(one, *rest)

    def noting_ways(self: Learner, worker: Any, given: dict[str, Any]) -> None:
        (way,) = given["vectors"]
        weight = float(way.segments()[-1][0])
        if weight:
            ways[worker.rank, self.times + 1] = weight, torch.cat([x.reshape(-1) for x in deltas_of(way, size)])
        was_handed_in(self, worker, given)

    monkeypatch.setattr(rounds, "mean_of_fragments", noting)
    monkeypatch.setattr(Learner, "was_handed_in", noting_ways)
    ends = trained(size, strategy, steps=40, pause=uneven, look=common, **WHO[strategy], **ADAM)
    assert are_equal(ends)
    gradients, ages = [], defaultdict[int, int](int)
    for _, one in sorted(taken.items()):
        given = [
            (sigma(age := one.contributors[rank][0][0]), age, *ways[rank, told[0]["time"]])
            for rank, told in one.measures.items()
            if told[0]["weights"][0]
        ]
        if given:
            total = sum(weight for _, _, weight, _ in given)
            gradients.append(sum((gate * weight / total * way for gate, _, weight, way in given), torch.zeros(())))
            for _, age, _, _ in given:
                ages[age] += 1
    assert ages[0] and any(0 < age < CUTOFF for age in ages)
    where = adam(gradients, flat(net()))
    assert torch.allclose(
        torch.cat([x.reshape(-1) for x in ends[0][1][: len(list(net().parameters()))]]), where, atol=2e-5
    )


@pytest.mark.parametrize("strategy", WHO)
def test_where_nothing_is_late_there_is_no_gate(strategy: str) -> None:
    adam_alone = {name: value for name, value in ADAM.items() if name not in GATED}
    alike: dict[str, Any] = {"sync_every": 4} | ({"wait_for": "all"} if strategy == "decoupled-diloco" else {})
    size = 3 if strategy == "decoupled-diloco" else 1
    ends = [trained(size, strategy, look=common, **alike, **choice) for choice in (ADAM, adam_alone)]
    assert torch.equal(ends[0][0][0], ends[1][0][0])
    found = [x for _, both in (ends[0][0], ends[1][0]) for x in both]
    assert all(map(torch.equal, found[: len(found) // 2], found[len(found) // 2 :]))


@pytest.mark.parametrize("strategy", WHO)
def test_past_the_cutoff_nothing_counts_and_all_is_counted(strategy: str) -> None:
    """With a cutoff of half a round what is late at all is nothing; every step is in one merge all the same."""
    choice: dict[str, Any] = {**WHO[strategy], **ADAM, "late_cutoff": 0.5}
    kept = [one for _, one in trained(3, strategy, pause=uneven, look=ledger, **choice)]
    assert all((one.produced, one.taken, one.lost) == (24, 24, 0.0) for one in kept)
    ends = trained(3, strategy, pause=uneven, look=common, **choice)
    assert are_equal(ends) and bool(ends[0][0].isfinite().all())


@pytest.mark.parametrize(("strategy", "size"), [("async-local-sgd", 1), ("decoupled-diloco", 3)])
def test_a_checkpoint_keeps_the_moments(strategy: str, size: int, tmp_path: Path) -> None:
    alike: dict[str, Any] = {"wait_for": "all"} if strategy == "decoupled-diloco" else {}
    whole, rest = scene(size, strategy, steps=14, sync_every=4, **alike, **ADAM).resumed(tmp_path, 6, 9)
    assert all(map(torch.equal, rest, whole))


@pytest.mark.parametrize("strategy", WHO)
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"late_cutoff": 0.0}, "late_cutoff is 0.0; it must be a number of rounds above 0"),
        ({"late_alpha": -0.1}, "late_alpha is -0.1; it must be a number"),
    ],
)
def test_gates_that_cannot_be_are_refused(strategy: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        trained(1, strategy, steps=1, late="cosine", **settings)


def test_only_the_momentum_of_sgd_is_delayed() -> None:
    with pytest.raises(ConfigurationError, match="momentum_every delays the momentum of SGD, and outer is 'adam'"):
        trained(1, "async-local-sgd", steps=1, outer="adam", momentum_every=2)
