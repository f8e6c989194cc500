"""Masks from scores: which numbers are kept, by tables and laws."""

from __future__ import annotations

import pytest
import torch

from quorate.buckets.flat import layout_of
from quorate.core.masks import Mask
from quorate.core.vectors import Flat, carried, digest_of, full_segments, pack, unpack
from quorate.shrink.masks import kept_by, kept_filters
from quorate.shrink.scores import score

DRAWN = {"a": torch.rand(4, 5, generator=torch.Generator().manual_seed(0)), "b": torch.rand(10, 3) + 2}


@pytest.mark.parametrize(
    ("amount", "scope", "counts"),
    [
        (0.0, "layer", (20, 30)),
        (0.5, "layer", (10, 15)),
        (0.9, "layer", (2, 3)),
        (0.999, "layer", (1, 1)),
        (0.2, "global", (10, 30)),
        (0.8, "global", (1, 10)),
    ],
)
def test_how_many_are_kept(amount: float, scope: str, counts: tuple[int, int]) -> None:
    """Each layer keeps a number, also where all of its scores are the lowest."""
    kept = kept_by(DRAWN, amount, scope, {})  # type: ignore[arg-type]
    assert tuple(int(flags.sum()) for flags in kept.values()) == counts
    for name, flags in kept.items():
        if flags.all():
            continue
        assert DRAWN[name][flags].min() >= DRAWN[name][~flags].max()


def test_pruned_numbers_stay_pruned() -> None:
    first = kept_by(DRAWN, 0.5, "layer", {})
    higher = {name: x + 100.0 * ~first[name] for name, x in DRAWN.items()}
    second = kept_by(higher, 0.7, "layer", first)
    assert all(not (second[name] & ~first[name]).any() for name in DRAWN)
    assert [int(flags.sum()) for flags in second.values()] == [6, 9]


def test_equal_scores_are_pruned_in_the_order_of_their_places() -> None:
    kept = kept_by({"a": torch.zeros(6, dtype=torch.float64)}, 0.5, "layer", {})
    assert kept["a"].tolist() == [False] * 3 + [True] * 3


def test_filters_are_kept_whole() -> None:
    x = torch.tensor([[1.0, -9.0], [2.0, 3.0], [0.1, 0.1], [8.0, 8.0]])
    scores = {"a": score(x, "magnitude", "filter", before=None, generator=torch.Generator())}
    kept = kept_filters(scores, kept_by(scores, 0.5, "layer", {}))
    assert kept["a"].tolist() == [[True, True], [False, False], [False, False], [True, True]]


def test_movement_is_away_from_zero() -> None:
    before, now = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([2.0, 0.5, -2.0, -0.5])
    of = score(now, "movement", "number", before=before, generator=torch.Generator())
    assert of.tolist() == [2.0, -0.25, 2.0, -0.25]


def test_random_scores_follow_the_generator() -> None:
    draw = lambda: torch.Generator().manual_seed(3)  # noqa: E731
    x = torch.ones(3, 4)
    first, second = (score(x, "random", "number", before=None, generator=draw()) for _ in range(2))
    assert torch.equal(first, second)
    assert len(first.unique()) == 12


def test_vectors_have_places_for_kept_numbers_only() -> None:
    x, y = torch.arange(1.0, 7.0).view(2, 3), torch.tensor([7.0, 8.0])
    mask = Mask(torch.tensor([[True, False, True], [False, False, True]]))
    layout = layout_of([("x", x), ("y", y)], header=2, masks={x: mask})
    assert [part.numel for part in layout.parts] == [3 + 2 + 2]
    pack([x, y], vector := Flat.zeros(layout))
    assert vector.segments()[0].tolist() == [1.0, 3.0, 6.0]
    assert full_segments(vector)[0].tolist() == [[1.0, 0.0, 3.0], [0.0, 0.0, 6.0]]
    other = torch.full((2, 3), 9.0)
    unpack(vector, [other, y])
    assert other.tolist() == [[1.0, 0.0, 3.0], [0.0, 0.0, 6.0]]


def test_layouts_of_other_masks_differ() -> None:
    x = torch.zeros(4)
    flags = [[True, True, False, False], [True, False, True, False]]
    digests = {digest_of(layout_of([("x", x)], masks={x: Mask(torch.tensor(kept))})) for kept in flags}
    assert len(digests) == 2
    assert digest_of(layout_of([("x", x)], masks={})) == digest_of(layout_of([("x", x)]))


def test_numbers_are_carried_from_one_mask_to_another() -> None:
    x = torch.zeros(4)
    wide, narrow = (Mask(torch.tensor(kept)) for kept in ([True, True, True, False], [False, True, True, False]))
    segments = [layout_of([("x", x)], masks=masks).segments[0] for masks in ({}, {x: wide}, {x: narrow})]
    full = torch.tensor([1.0, 2.0, 3.0, 4.0])
    after = carried(full, segments[0], segments[1])
    assert after.tolist() == [1.0, 2.0, 3.0]
    assert carried(after, segments[1], segments[2]).tolist() == [2.0, 3.0]
    assert carried(after, segments[1], segments[1]) is after


def test_nothing_that_is_pruned_survives_not_even_nan() -> None:
    x = torch.tensor([1.0, float("nan"), float("inf"), -2.0])
    Mask(torch.tensor([True, False, False, True])).apply_(x)
    assert x.tolist() == [1.0, 0.0, 0.0, -2.0]
