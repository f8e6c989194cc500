"""Which number stands for which word: the frequent words themselves, classes of shape for the others. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

PADDING = "<padding>"
SHAPES = ("NAME", "Name", "name", "_name", "__name__", "many_words", "number", "other letters", "signs")
LENGTHS = {"short": 5, "medium": 10}
"""The greatest length of a rare word that is called so; beyond, it is "long"."""

CLASSES = (PADDING, *(f"<{shape}, {length}>" for shape, length in product(SHAPES, (*LENGTHS, "long"))))
"""The first entries of every vocabulary; PADDING is number 0."""

RARE = 3
"""A word seen fewer times than this is known by its class only."""


def shape_class(word: str) -> str:
    """The entry for a word that has none of its own; one of `CLASSES`."""
    length = next((name for name, most in LENGTHS.items() if len(word) <= most), "long")
    return f"<{_shape(word)}, {length}>"


def _shape(word: str) -> str:
    core = word.strip("_")
    if word[0].isdigit() or (word[0] == "." and word[1:2].isdigit()):
        return "number"
    if not core.replace("_", "").isalnum():
        return "signs"
    if not word.isascii():
        return "other letters"
    if word.startswith("__") and word.endswith("__"):
        return "__name__"
    if word.startswith("_"):
        return "_name"
    if core.isupper():
        return "NAME"
    if "_" in core:
        return "many_words"
    return "name" if core.islower() else "Name"


def build(counts: Mapping[str, int], size: int) -> tuple[str, ...]:
    """The `CLASSES`, then the most frequent words (ties in the order of their text), `size` entries at most."""
    frequent = (item for item in counts.items() if item[1] >= RARE)
    ranked = sorted(frequent, key=lambda item: (-item[1], item[0]))
    return CLASSES + tuple(word for word, _ in ranked[: size - len(CLASSES)])


def encode(words: Iterable[str], numbers: Mapping[str, int]) -> list[int]:
    """The number of each word, or of its class. `numbers` is the inverse of a vocabulary."""
    return [numbers[word] if word in numbers else numbers[shape_class(word)] for word in words]


def inverse(vocabulary: Sequence[str]) -> dict[str, int]:
    """The token of each number."""
    return {word: number for number, word in enumerate(vocabulary)}


def counted(sequences: Iterable[Iterable[str]]) -> Counter[str]:
    """Tokens by how often they occur."""
    counts: Counter[str] = Counter()
    for sequence in sequences:
        counts.update(sequence)
    return counts
