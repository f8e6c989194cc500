"""A pattern: which blocks of keys each block of queries attends to."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quorate.attention.names import patterns
from quorate.core.errors import ConfigurationError
from quorate.core.settings import settings_for, written_settings

OwnFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From a head's number, the numbers of blocks of queries (n, 1) and those of blocks of keys (n), to booleans (n, n)."""


@dataclass(frozen=True, kw_only=True)
class Pattern(ABC):
    """Which blocks of keys each block of queries attends to."""

    block: int = 64
    """Positions in a block."""

    def __post_init__(self) -> None:
        at_least(self, 1, "block")

    @property
    def differs_between_heads(self) -> bool:
        """Whether the blocks depend on the layer and the head."""
        return False

    @abstractmethod
    def blocks(self, count: int, *, is_causal: bool, layer: int, head: int) -> Tensor:
        """Return a boolean tensor (count, count): whether a block of queries (row) attends to one of keys (column).

        Under `is_causal` entries above the diagonal are ignored.
        """


class ChangingPattern(ABC):
    """A pattern that changes during a training."""

    @property
    @abstractmethod
    def in_force(self) -> Pattern:
        """The pattern with which attention is computed now."""


AnyPattern = Pattern | ChangingPattern | str | OwnFunction


def numbers_of_blocks(count: int) -> tuple[Tensor, Tensor]:
    """Return the numbers of blocks of queries, (count, 1), and those of blocks of keys, (count)."""
    numbers = torch.arange(count)
    return numbers.unsqueeze(1), numbers


@dataclass(frozen=True, kw_only=True)
class ByFunction(Pattern):
    """A function of block indices."""

    function: OwnFunction
    """Called with the number of the head, those of blocks of queries (n, 1), and those of blocks of keys (n)."""

    @property
    def differs_between_heads(self) -> bool:
        return True

    def blocks(self, count: int, *, is_causal: bool, layer: int, head: int) -> Tensor:
        rows, columns = numbers_of_blocks(count)
        return self.function(torch.tensor(head), rows, columns).expand(count, count)


def at_least(pattern: Pattern, least: int, *names: str) -> None:
    """Raise `ConfigurationError` unless each of the settings `names`, or each number in it, is `least` or more."""
    for name in names:
        setting = getattr(pattern, name)
        numbers = setting if isinstance(setting, tuple) else (setting,)
        if any(number < least for number in numbers):
            raise ConfigurationError(f"{name} of {type(pattern).__name__} is {setting}; it must be at least {least}")


def pattern_of(pattern: AnyPattern) -> Pattern:
    """Return a pattern, from its name with settings, such as "window:width=5,block=32", or from a function.

    Of a pattern that changes it is the one in force.

    Raises `ConfigurationError` for an unknown name or setting.
    """
    if isinstance(pattern, Pattern):
        return pattern
    if isinstance(pattern, ChangingPattern):
        return pattern.in_force
    if isinstance(pattern, str):
        return _written(pattern)
    if callable(pattern):
        return ByFunction(function=pattern)
    raise ConfigurationError(
        f"{type(pattern).__name__} is no attention pattern; pass a name of {', '.join(patterns)}, an object of "
        "quorate.attention, or a function of block indices"
    )


@functools.lru_cache(maxsize=64)
def _written(text: str) -> Pattern:
    name, raw = written_settings(text, "attention pattern")
    kind: type[Pattern] = patterns.get(name)
    return kind(**settings_for(kind, raw, name))


def lengths_of(documents: Tensor | Sequence[int] | None) -> tuple[int, ...]:
    """Return the lengths of documents; empty where only numbers of positions are passed, or nothing."""
    return () if documents is None or isinstance(documents, Tensor) else tuple(documents)


@dataclass(frozen=True)
class Blocks:
    """The blocks of some heads of a layer."""

    pattern: Pattern
    count: int
    """The number of blocks of queries, and of keys."""
    is_causal: bool
    layer: int = 0
    first_head: int = 0
    heads: int = 1
    documents: tuple[int, ...] = ()
    """The lengths of documents; blocks that share none are left out."""


@functools.lru_cache(maxsize=64)
def block_mask(blocks: Blocks) -> Tensor:
    """Return which blocks attend to each other: a boolean tensor (heads, count, count), on the CPU.

    Where heads are alike it is (1, count, count).
    """
    pattern, count, is_causal = blocks.pattern, blocks.count, blocks.is_causal
    heads = range(blocks.first_head, blocks.first_head + blocks.heads) if pattern.differs_between_heads else range(1)
    mask = torch.stack([pattern.blocks(count, is_causal=is_causal, layer=blocks.layer, head=head) for head in heads])
    if mask.shape != (len(heads), count, count) or mask.dtype != torch.bool:
        raise ConfigurationError(
            f"the pattern {type(pattern).__name__} returned {mask.dtype} of the shape {tuple(mask.shape[1:])} for "
            f"{count} blocks; it must return booleans of the shape ({count}, {count})"
        )
    if blocks.documents:
        mask &= _in_one_document(blocks.documents, pattern.block)
    return mask.tril() if is_causal else mask


def _in_one_document(lengths: tuple[int, ...], block: int) -> Tensor:
    """Return (count, count) whether two blocks have positions of the same document."""
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    begins = torch.arange(0, len(numbers), block)
    first, last = numbers[begins], numbers[(begins + block).clamp(max=len(numbers)) - 1]
    return (first.unsqueeze(1) <= last) & (first <= last.unsqueeze(1))


def pattern_mask(
    pattern: AnyPattern, length: int, *, is_causal: bool = False, layer: int = 0, heads: int = 1
) -> Tensor:
    """Return the mask of positions with which dense attention computes what `sparse_attention` does.

    Args:
        pattern: A pattern, its name, or a function of block indices.
        length: The number of positions S.
        is_causal: Whether a position attends to itself and earlier positions only.
        layer: The number of the layer, on which random patterns depend.
        heads: The number of heads of queries.

    Returns:
        A boolean tensor (heads, S, S), True where a query (row) attends to a key (column); (1, S, S) where heads are
        alike.

    Raises:
        ConfigurationError: There is no such pattern.

    Example:
        >>> quorate.attention.pattern_mask("window:width=1,block=2", 4)[0].int().tolist()
        [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    """
    resolved = pattern_of(pattern)
    size = resolved.block
    mask = block_mask(Blocks(resolved, -(-length // size), is_causal, layer, heads=heads))
    positions = mask.repeat_interleave(size, -2).repeat_interleave(size, -1)[:, :length, :length]
    return positions.tril() if is_causal else positions
