"""The patterns of sparse attention.

Idea: Queries and keys are cut into blocks. Each block of queries attends to a few blocks of keys only, so that time and
memory grow with the length of a sequence, not with its square. A position reaches distant ones over several layers.

Cost: For n positions, blocks of b and w blocks in a row, n w b scores for each head, where dense attention has n^2.
Keys and values are gathered once forward and once backward.

When it loses: On sequences that are a few blocks long, where torch's fused dense attention is as fast. Its memory grows
with the length as well: against it sparse attention saves time, not memory. A task that needs an exact copy of distant
tokens loses quality: measure the loss beside dense attention.

Paper: Child et al., "Generating Long Sequences with Sparse Transformers", arXiv 1904.10509 (fixed, strided); Beltagy,
Peters and Cohan, "Longformer", arXiv 2004.05150; Zaheer et al., "Big Bird", arXiv 2007.14062.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from quorate.attention.pattern import Pattern, at_least, numbers_of_blocks
from quorate.core.draws import chosen
from quorate.core.errors import ConfigurationError


def _near(count: int, width: int, *, is_causal: bool) -> Tensor:
    """The `width` last blocks under a causal mask, the block itself included; else `width` // 2 on each side."""
    rows, columns = numbers_of_blocks(count)
    distances = rows - columns
    return (distances >= 0) & (distances < width) if is_causal else distances.abs() <= width // 2


def _global(mask: Tensor, indices: tuple[int, ...]) -> Tensor:
    """Let all rows attend to the blocks `indices`, and these to all."""
    kept = [index for index in indices if index < len(mask)]
    mask[:, kept] = True
    mask[kept] = True
    return mask


def _random(mask: Tensor, each: int, *numbers: int, is_causal: bool) -> Tensor:
    """Add `each` blocks to every row, drawn by the counters `numbers`; under a causal mask of the blocks up to it."""
    for row in range(len(mask)) if each else ():
        size = row + 1 if is_causal else len(mask)
        mask[row, sorted(chosen(min(each, size), size, *numbers, row))] = True
    return mask


@dataclass(frozen=True, kw_only=True)
class Dense(Pattern):
    """All blocks: the attention of torch."""

    def blocks(self, count: int, *, is_causal: bool, layer: int, head: int) -> Tensor:
        return torch.ones(count, count, dtype=torch.bool)


@dataclass(frozen=True, kw_only=True)
class Window(Pattern):
    """A sliding window of blocks."""

    width: int = 3
    """Blocks in the window: under a causal mask the block itself and those before it, else half on each side."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "width")

    def blocks(self, count: int, *, is_causal: bool, layer: int, head: int) -> Tensor:
        return _near(count, self.width, is_causal=is_causal)


@dataclass(frozen=True, kw_only=True)
class Longformer(Pattern):
    """A sliding window, and global blocks that attend to all and to which all attend."""

    width: int = 3
    """Blocks in the window, as in `window`."""
    global_blocks: tuple[int, ...] = (0,)
    """Indices of global blocks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "width")
        at_least(self, 0, "global_blocks")

    def blocks(self, count: int, *, is_causal: bool, layer: int, head: int) -> Tensor:
        return _global(_near(count, self.width, is_causal=is_causal), self.global_blocks)


@dataclass(frozen=True, kw_only=True)
class BigBird(Pattern):
    """A sliding window, the first blocks as global ones, and random blocks, drawn by seed, layer and head."""

    width: int = 3
    """Blocks in the window, as in `window`."""
    random: int = 1
    """Random blocks in a row. Under a causal mask they are drawn among the earlier ones."""
    global_blocks: int = 1
    """Number of global blocks, at the beginning."""
    seed: int = 0
    """The seed of the draws, which are the same on all workers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "width")
        at_least(self, 0, "random", "global_blocks")

    @property
    def differs_between_heads(self) -> bool:
        return self.random > 0

    def blocks(self, count: int, *, is_causal: bool, layer: int, head: int) -> Tensor:
        near = _near(count, self.width, is_causal=is_causal)
        mask = _global(near, tuple(range(self.global_blocks)))
        return _random(mask, self.random, self.seed, layer, head, is_causal=is_causal)


@dataclass(frozen=True, kw_only=True)
class Fixed(Pattern):
    """Groups of adjacent blocks that attend to each other, and summary blocks of each group for all."""

    local: int = 4
    """Blocks in a group."""
    global_blocks: int = 1
    """Summary blocks of a group; a divisor of `local`."""
    patterns: int = 1
    """Different choices of summary blocks, one head after another: 1, the last ones of a group, for all heads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "local", "global_blocks", "patterns")
        if self.local % self.global_blocks:
            raise ConfigurationError(
                f"local of Fixed is {self.local}; it must be a multiple of global_blocks, {self.global_blocks}"
            )
        if self.patterns > self.local // self.global_blocks:
            raise ConfigurationError(
                f"patterns of Fixed is {self.patterns}; a group has {self.local // self.global_blocks} choices"
            )

    @property
    def differs_between_heads(self) -> bool:
        return self.patterns > 1

    def blocks(self, count: int, *, is_causal: bool, layer: int, head: int) -> Tensor:
        rows, columns = numbers_of_blocks(count)
        first = self.local - (1 + head % self.patterns) * self.global_blocks
        within = columns % self.local
        is_summary = (within >= first) & (within < first + self.global_blocks)
        return (rows // self.local == columns // self.local) | is_summary


@dataclass(frozen=True, kw_only=True)
class Strided(Pattern):
    """The nearest blocks, and every block at a multiple of the stride from them."""

    stride: int = 4
    """Blocks in the window of nearest ones, and between distant ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "stride")

    def blocks(self, count: int, *, is_causal: bool, layer: int, head: int) -> Tensor:
        rows, columns = numbers_of_blocks(count)
        return ((rows - columns).abs() < self.stride) | ((rows - columns) % self.stride == 0)


@dataclass(frozen=True, kw_only=True)
class Variable(Pattern):
    """Groups of given sizes that attend to each other, global blocks, and random blocks."""

    local: tuple[int, ...] = (4,)
    """Blocks in each group, one after the other; the last size repeats."""
    global_blocks: tuple[int, ...] = (0,)
    """Indices of blocks to which all attend; they attend to their group only."""
    random: int = 0
    """Random blocks in a row, drawn by seed, layer and head."""
    seed: int = 0
    """The seed of the draws."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "local")
        at_least(self, 0, "global_blocks", "random")
        if not self.local:
            raise ConfigurationError("local of Variable is empty; it must have the size of at least one group")

    @property
    def differs_between_heads(self) -> bool:
        return self.random > 0

    def blocks(self, count: int, *, is_causal: bool, layer: int, head: int) -> Tensor:
        sizes = itertools.chain(self.local, itertools.repeat(self.local[-1]))
        groups = list(itertools.islice((g for g, size in enumerate(sizes) for _ in range(size)), count))
        numbers = torch.tensor(groups)
        mask = numbers.unsqueeze(1) == numbers
        mask[:, [index for index in self.global_blocks if index < count]] = True
        return _random(mask, self.random, self.seed, layer, head, is_causal=is_causal)
