"""Which blocks are in a pattern, and who draws them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quorate.attention import BigBird, Fixed, Longformer, Pattern, Strided, Variable, Window, pattern_mask
from quorate.attention.pattern import Blocks, block_mask, pattern_of
from quorate.core.errors import ConfigurationError
from tests.unit.attention.drawings import drawn


@pytest.mark.parametrize(
    ("pattern", "is_causal", "head", "picture"),
    [
        (Window(), False, 0, "##... ###.. .###. ..### ...##"),
        (Window(), True, 0, "#.... ##... ###.. .###. ..###"),
        (Longformer(width=1), False, 0, "##### ##... #.#.. #..#. #...#"),
        (Longformer(width=1, global_blocks=(1, 9)), True, 0, "#.... ##... .##.. .#.#. .#..#"),
        (Fixed(local=2), True, 0, "#.... ##... .##.. .###. .#.##"),
        (Fixed(local=2, patterns=2), False, 1, "###.# ###.# #.### #.### #.#.#"),
        (Strided(stride=2), True, 0, "#.... ##... ###.. .###. #.###"),
        (Variable(local=(1, 2), global_blocks=(4,)), False, 0, "#...# .##.# .##.# ...## ...##"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Pattern) else None,
)
def test_pictures(pattern: Pattern, is_causal: bool, head: int, picture: str) -> None:
    assert drawn(pattern, 5, is_causal=is_causal, head=head) == picture.split()


def test_random_blocks_depend_on_seed_layer_and_head() -> None:
    def random_blocks(seed: int, layer: int, head: int, count: int = 40) -> Tensor:
        return block_mask(Blocks(BigBird(width=1, global_blocks=0, seed=seed), count, True, layer, head))

    mask = random_blocks(3, 1, 2)
    assert torch.equal(mask, random_blocks(3, 1, 2))
    assert not any(torch.equal(mask, random_blocks(*other)) for other in [(4, 1, 2), (3, 0, 2), (3, 1, 3)])
    assert torch.equal(mask[:, :30, :30], random_blocks(3, 1, 2, count=30)), "a longer sequence begins in the same way"
    assert set(mask.sum(-1).flatten().tolist()) == {1, 2}, "the block itself and one earlier block, or itself drawn"


def test_heads_of_a_part_are_those_of_all() -> None:
    every = block_mask(Blocks(BigBird(), 20, False, 5, heads=4))
    assert torch.equal(every[2:], block_mask(Blocks(BigBird(), 20, False, 5, 2, 2)))


def test_a_mask_of_positions_is_causal_to_the_position() -> None:
    mask = pattern_mask("window:width=2,block=2", 5, is_causal=True)
    assert mask[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]


def test_names_and_functions() -> None:
    assert pattern_of("longformer:width=5,global_blocks=[]") == Longformer(width=5, global_blocks=())
    assert pattern_of("variable:local=[1,3],random=2") == Variable(local=(1, 3), random=2)
    mask = pattern_mask(lambda head, rows, columns: rows == columns, 130)
    assert mask.shape == (1, 130, 130)
    assert mask.sum() == 64**2 * 2 + 2**2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pattern_of("windows"), 'unknown attention pattern "windows"'),
        (lambda: pattern_of("window:wide=3"), "wide"),
        (lambda: pattern_of(3), "int is no attention pattern"),  # type: ignore[arg-type]
        (lambda: Window(width=0), "width of Window is 0; it must be at least 1"),
        (lambda: Longformer(global_blocks=(1, -1)), r"global_blocks of Longformer is \(1, -1\); it must be at least 0"),
        (lambda: Fixed(local=4, global_blocks=3), "must be a multiple of global_blocks, 3"),
        (lambda: Fixed(local=4, global_blocks=2, patterns=3), "a group has 2 choices"),
        (lambda: Variable(local=()), "local of Variable is empty"),
        (lambda: pattern_mask(lambda head, rows, columns: rows - columns, 200), "returned torch.int64 of the shape"),
    ],
)
def test_wrong_patterns(make: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()  # type: ignore[operator]
