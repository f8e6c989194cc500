"""Replicas by shards: what is left out is found, and what cannot be is refused."""

from __future__ import annotations

import pytest

from quorate.core.axes import Axes, axes_for, axes_from_text, stage_of
from quorate.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("size", "replicas", "shards", "sizes"),
    [
        (4, 2, 2, (2, 2)),
        (4, None, 2, (2, 2)),
        (6, 2, None, (2, 3)),
        (4, None, 4, (1, 4)),
        (4, 4, None, (4, 1)),
        (1, 1, 1, (1, 1)),
    ],
)
def test_sizes(size: int, replicas: int | None, shards: int | None, sizes: tuple[int, int]) -> None:
    axes = axes_for(size, replicas, shards)
    assert (axes.replicas, axes.shards) == sizes
    assert axes_from_text(axes.in_words, size) == axes


@pytest.mark.parametrize(
    ("size", "replicas", "shards", "words"),
    [
        (4, 3, None, "4 workers cannot be laid out as replicas=3;"),
        (4, 2, 1, "4 workers cannot be laid out as replicas=2,shards=1;"),
        (4, 1, 8, "4 workers cannot be laid out as replicas=1,shards=8;"),
        (2, None, 4, "2 workers cannot be laid out as shards=4;"),
        (2, 0, None, "replicas=0 is not a size of a mesh"),
        (2, None, -2, "shards=-2 is not a size of a mesh"),
        (2, None, True, "shards=True is not a size of a mesh"),
        (2, None, 2.0, "shards=2.0 is not a size of a mesh"),
        (2, None, None, "a mesh needs replicas=, stages=, shards= or tensor="),
    ],
)
def test_sizes_that_cannot_be(size: int, replicas: int | None, shards: int | None, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        axes_for(size, replicas, shards)
    assert words in str(refused.value)


@pytest.mark.parametrize("text", ["replicas=2,shards=2", " shards=2 , replicas=2", "shards=2"])
def test_texts(text: str) -> None:
    assert axes_from_text(text, 4) == Axes(2, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2x2",
        "shards",
        "shards=",
        "shards=two",
        "shards=-2",
        "shards=1.5",
        "shards=2,shards=2",
        "pieces=2",
        "shards=1e6",
        "shards=12345678",
    ],
)
def test_texts_that_are_no_mesh(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not a mesh; write replicas=R,stages=L,shards=S"):
        axes_from_text(text, 4)


def test_stages() -> None:
    assert [stage_of(zero) for zero in (1, 2, 3)] == [1, 2, 3]
    for zero in (0, 4, True, "3", None):
        with pytest.raises(ConfigurationError, match=r"is unknown; known: 1, 2, 3$"):
            stage_of(zero)
