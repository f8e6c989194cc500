"""Aggregation rules: what at most f wrong vectors can do, and what rules are where nobody is wrong."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as draw
from torch import Tensor

from quorate.aggregation import rules
from quorate.aggregation.rows import Rows
from quorate.aggregation.rule import Rule, aggregated, mixed_rows
from quorate.core.codec import Draw
from quorate.core.errors import ConfigurationError, Mismatch

ROBUST = [name for name in rules if name not in ("mean", "majority")]
TREATS_ALIKE = [name for name in ROBUST if name not in ("bucketing", "monna")]


def made(name: str, f: int) -> Rule:
    return rules.get(name)(f=f)


def honest(count: int, seed: int, dim: int = 40, spread: float = 0.1) -> tuple[Tensor, Tensor]:
    """Vectors around one, and that one."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(dim, generator=generator)
    return truth + spread * torch.randn(count, dim, generator=generator), truth


ATTACKS: dict[str, Any] = {
    "huge": lambda truth, f: torch.full((f, len(truth)), 1e30),
    "not finite": lambda truth, f: torch.full((f, len(truth)), float("nan")),
    "infinite": lambda truth, f: torch.full((f, len(truth)), float("inf")),
    "turned round": lambda truth, f: -100 * truth.repeat(f, 1),
    "alike": lambda truth, f: (truth + 3).repeat(f, 1),
    "zeros": lambda truth, f: torch.zeros(f, len(truth)),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", ROBUST)
def test_f_wrong_vectors_do_not_move_the_result_far(name: str, attack: str) -> None:
    """At each rule's own breakdown point. The mean fails this."""
    for f in (1, 2, 3):
        rule = made(name, f)
        good, truth = honest(rule.least - f, 10 * f)
        result = aggregated(rule, torch.cat([good, ATTACKS[attack](truth, f)]), torch.zeros_like(truth))
        again = result
        for _ in range(30 if rule.has_centre else 0):  # from its newest result, step by step
            again = aggregated(rule, torch.cat([good, ATTACKS[attack](truth, f)]), again)
        furthest = max(float((x - truth).norm()) for x in good)
        assert float((again - truth).norm()) < 4 * furthest, (f, float((again - truth).norm()), furthest)


def test_one_wrong_vector_moves_the_mean_anywhere() -> None:
    good, truth = honest(6, 0)
    rows = torch.cat([good, ATTACKS["huge"](truth, 1)])
    assert float(aggregated(made("mean", 0), rows).norm()) > 1e28
    with pytest.raises(
        ConfigurationError, match="^Mean takes no wrong vector: of 7 vectors up to 0 may be wrong, and f"
    ):
        aggregated(made("mean", 1), rows)


@pytest.mark.parametrize("name", ROBUST)
def test_an_f_beyond_the_breakdown_point_is_refused(name: str) -> None:
    for f in (1, 2, 5):
        rule = made(name, f)
        rule.check(rule.least)
        with pytest.raises(ConfigurationError, match=rf"of {rule.least - 1} vectors .* may be wrong, and f is {f}$"):
            aggregated(rule, torch.zeros(rule.least - 1, 3))
        assert rule.most_of(rule.least) == f


@settings(deadline=None, max_examples=25)
@given(draw.sampled_from(TREATS_ALIKE), draw.integers(0, 2), draw.integers(0, 10_000))
def test_where_vectors_stand_does_not_matter(name: str, f: int, seed: int) -> None:
    rule = made(name, f)
    rows, _ = honest(max(3, rule.least) + 1 + seed % 3, seed)  # with one neighbour each, two may be alike
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed + 1))
    torch.testing.assert_close(aggregated(rule, rows), aggregated(rule, rows[order]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("more", [0, 1, 30])
@pytest.mark.parametrize("name", [*ROBUST, "mean"])
def test_the_vectors_are_as_before(name: str, more: int) -> None:
    """Rules are given the vectors where they lie."""
    rule = made(name, 0 if name == "mean" else 1)
    rows, truth = honest(rule.least + more, 5, dim=100)
    for vectors in (rows, rows.double()):
        before = vectors.clone()
        aggregated(rule, vectors, truth)
        assert torch.equal(vectors, before)


@pytest.mark.parametrize("name", ["trimmed-mean", "bulyan", "nearest-neighbors", "monna", "mean"])
def test_with_nobody_wrong_it_is_the_mean(name: str) -> None:
    rows, _ = honest(7, 1)
    torch.testing.assert_close(aggregated(made(name, 0), rows), rows.mean(0))


def test_multi_krum_of_all_is_the_mean_of_those_it_takes() -> None:
    rows, _ = honest(9, 2)
    kinds: Any = rules.get("multi-krum")
    torch.testing.assert_close(aggregated(kinds(f=0, m=7), rows), aggregated(kinds(f=0), rows))
    torch.testing.assert_close(aggregated(kinds(f=2, m=1), rows), aggregated(made("krum", 2), rows))


@pytest.mark.parametrize("name", [*ROBUST, "mean", "majority"])
def test_equal_vectors_give_that_vector(name: str) -> None:
    vector = torch.randn(17, generator=torch.Generator().manual_seed(3))
    rule = made(name, 0 if name == "mean" else 1)
    torch.testing.assert_close(aggregated(rule, vector.repeat(rule.least, 1), vector), vector)


@pytest.mark.parametrize("name", ROBUST)
def test_pieces_of_vectors_give_pieces_of_the_result(name: str) -> None:
    """As workers would that hold columns: inner products are summed, and each combines its own."""
    rule = made(name, 1)
    rows, truth = honest(rule.least + 1, 4)
    rows = rows - truth if rule.has_centre else rows
    pieces = [Rows(list(piece)) for piece in rows.split([11, 0, 25, 4], 1)]
    gram = torch.stack([piece.products(is_exact=True) for piece in pieces]).sum(0)
    weights = rule.mixing(gram, Draw(seed=5))
    results = [torch.empty(piece.width) for piece in pieces]
    for piece, into in zip(pieces, results, strict=True):
        mixed_rows(piece, range(len(rows)), weights, rule, [into])
    whole = aggregated(rule, rows, torch.zeros_like(truth), Draw(seed=5))
    torch.testing.assert_close(torch.cat(results), whole, rtol=1e-5, atol=1e-6)


def test_krum_by_hand() -> None:
    """n = 5, f = 1: two nearest others. Scores of 0, 1, 3, 7, 100: 10, 5, 13, 52 and more; 1 has the least."""
    rows = torch.tensor([[0.0], [1.0], [3.0], [7.0], [100.0]])
    assert aggregated(made("krum", 1), rows).tolist() == [1.0]
    assert aggregated(made("multi-krum", 1), rows).tolist() == [pytest.approx((1 + 0) / 2)]


def test_bulyan_by_hand() -> None:
    """n = 7, f = 1: five are chosen, and of those the three nearest to their median averaged."""
    rows = torch.tensor([[0.0], [1.0], [2.0], [3.0], [5.0], [9.0], [1000.0]])
    # Four nearest others at first, then three, two, one: chosen are 2, 1, 3, 0 and 5; their median is 2.
    assert aggregated(made("bulyan", 1), rows).tolist() == [2.0]


def test_medians() -> None:
    four = torch.tensor([[1.0, 5.0], [4.0, 1.0], [2.0, 2.0], [9.0, 3.0]])
    assert aggregated(made("median", 1), four).tolist() == [3.0, 2.5]
    assert aggregated(made("median", 1), four[:3]).tolist() == [2.0, 2.0]
    assert aggregated(made("trimmed-mean", 1), torch.tensor([[1.0], [4.0], [2.0], [9.0]])).tolist() == [3.0]


def test_the_geometric_median_has_the_least_sum_of_distances() -> None:
    rows, _ = honest(6, 7, dim=3, spread=2.0)
    rows = rows.double()
    median = aggregated(made("geometric-median", 2), rows)
    here = (rows - median).norm(dim=1).sum()
    for step in torch.randn(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(8)):
        assert (rows - median - 0.01 * step).norm(dim=1).sum() >= here - 1e-9


def test_centered_clipping_by_hand() -> None:
    """From 0 with a radius of 1: (1 + 1 - 1 + 0.5) / 4, and again from there."""
    kind: Any = rules.get("centered-clipping")
    rows = torch.tensor([[4.0], [2.0], [-50.0], [0.5]])
    once = aggregated(kind(tau=1.0, iterations=1), rows, torch.zeros(1))
    assert once.tolist() == [pytest.approx(0.375)]
    twice = aggregated(kind(tau=1.0, iterations=2), rows, torch.zeros(1))
    assert twice.tolist() == [pytest.approx(0.375 + (1 + 1 - 1 + 0.125) / 4)]


def test_a_majority_is_counted() -> None:
    rows = torch.tensor([[1.0, 2.0], [9.0, 9.0], [1.0, 2.0], [9.0, 9.5], [1.0, 2.0]])
    assert aggregated(made("majority", 2), rows).tolist() == [1.0, 2.0]
    with pytest.raises(Mismatch, match="no vector was sent by more than half: at most 2 of 5 are equal"):
        aggregated(made("majority", 2), torch.cat([rows[:4], torch.zeros(1, 2)]))


def test_buckets_are_drawn_anew_and_alike_everywhere() -> None:
    rows, _ = honest(8, 9, spread=5.0)
    rule = made("bucketing", 1)
    first, again, other = (
        aggregated(rule, rows, None, Draw(round=number, rank=rank)) for number, rank in [(0, 0), (0, 3), (1, 0)]
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize(
    ("name", "chosen", "words"),
    [
        ("krum", {"f": -1}, "f is -1; it must be a count of vectors"),
        ("multi-krum", {"m": 0}, "m is 0; it must be a count of vectors"),
        ("bucketing", {"size": 0}, "size is 0; a group has vectors"),
        ("bucketing", {"rule": "centered-clipping"}, "centered-clipping starts from its latest result"),
        ("nearest-neighbors", {"rule": "krumm"}, 'unknown aggregation rule "krumm"'),
        ("centered-clipping", {"tau": 0.0}, "tau is 0.0 and iterations 3"),
        ("geometric-median", {"iterations": 0}, "iterations is 0"),
    ],
)
def test_settings_that_cannot_be(name: str, chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        rules.get(name)(**chosen)


def test_vectors_of_which_none_is_finite() -> None:
    with pytest.raises(ConfigurationError, match="none of the 3 vectors is finite"):
        aggregated(made("median", 1), torch.full((3, 2), float("nan")))


@pytest.mark.skipif(importlib.util.find_spec("byzfl") is None, reason="byzfl is not installed")
@pytest.mark.parametrize("f", [1, 2])
def test_as_an_independent_library(f: int, monkeypatch: pytest.MonkeyPatch) -> None:
    package, spec = types.ModuleType("byzfl"), importlib.util.find_spec("byzfl")
    assert spec is not None and spec.submodule_search_locations is not None
    package.__path__ = list(spec.submodule_search_locations)
    monkeypatch.setitem(sys.modules, "byzfl", package)  # its own imports its benchmarks, and these torchvision
    theirs: Any = importlib.import_module("byzfl.aggregators.aggregators")
    before: Any = importlib.import_module("byzfl.aggregators.preaggregators")
    rows, _ = honest(4 * f + 4, 11, spread=1.0)
    kinds: Any = {
        "median": theirs.Median(),
        "trimmed-mean": theirs.TrMean(f=f),
        "krum": theirs.Krum(f=f),
        "geometric-median": theirs.GeometricMedian(nu=1e-9, T=2000),
        "monna": theirs.MoNNA(f=f, idx=0),
        "nearest-neighbors": lambda some: theirs.TrMean(f=f)(before.NNM(f=f)(some)),
    }
    for name, kind in kinds.items():
        torch.testing.assert_close(aggregated(made(name, f), rows), kind(rows), rtol=1e-3, atol=1e-4, msg=name)
    kind = theirs.CenteredClipping(L=3, tau=2.0)
    ours: Any = rules.get("centered-clipping")
    result = aggregated(ours(f=f, tau=2.0, iterations=3), rows, torch.zeros(rows.shape[1]))
    torch.testing.assert_close(result, kind(rows), rtol=1e-4, atol=1e-5)
