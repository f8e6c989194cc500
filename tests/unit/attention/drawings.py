"""Patterns for tests, and their pictures."""

from __future__ import annotations

from torch import Tensor

from quorate.attention import BigBird, Fixed, Longformer, Pattern, Strided, Variable, Window
from quorate.attention.pattern import Blocks, ByFunction, block_mask

BLOCK = 8


def _every_third(head: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return (rows - columns) % 3 == head % 3


PATTERNS: dict[str, Pattern] = {
    "window": Window(block=BLOCK),
    "longformer": Longformer(block=BLOCK, global_blocks=(0, 2)),
    "bigbird": BigBird(block=BLOCK, random=2),
    "fixed": Fixed(block=BLOCK, patterns=2),
    "strided": Strided(block=BLOCK, stride=3),
    "variable": Variable(block=BLOCK, local=(1, 2), random=1),
    "function": ByFunction(block=BLOCK, function=_every_third),
}
"""One of each kind; the last one leaves out the diagonal in some heads."""


def drawn(pattern: Pattern, count: int, *, is_causal: bool, head: int = 0) -> list[str]:
    """Return a line of text for each block of queries: `#` for a block of keys that it attends to."""
    mask = block_mask(Blocks(pattern, count, is_causal, first_head=head))[0]
    return ["".join("#" if seen else "." for seen in row) for row in mask.tolist()]
