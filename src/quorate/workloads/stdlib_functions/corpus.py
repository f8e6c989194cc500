"""The whole data set as four tensors: numbered words, where each function begins, its class, and its side."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError

import torch
from torch import Tensor

from quorate.workloads.stdlib_functions import vocabulary
from quorate.workloads.stdlib_functions.functions import Function, functions_in, stable_hash

OTHER = "other"
"""The class of all functions whose module has too few."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which functions, and how they are written down."""

    modules: tuple[str, ...] | None
    """Top-level packages or modules; None: all."""
    limit: int | None
    """At most so many functions, of files in a random but fixed order; None: all."""
    longest: int
    """Words of a function beyond this are cut off."""
    smallest_class: int
    """Modules with fewer functions form the class `OTHER`."""
    vocabulary_size: int
    """Entries at most."""


@dataclass(frozen=True)
class Corpus:
    """n functions, in the order of their files, then of their first lines."""

    words: Tensor
    """All numbered words, one function after the other: int16 of shape (total,)."""
    offsets: Tensor
    """Function i is words[offsets[i]:offsets[i+1]]: int64 of shape (n+1,), the first 0."""
    labels: Tensor
    """Numbers of classes: int64 of shape (n,)."""
    is_test: Tensor
    """bool of shape (n,)."""
    classes: tuple[str, ...]
    vocabulary: tuple[str, ...]
    files: int
    """Files read."""
    skipped: tuple[str, ...]
    """Files left out, as they are not this Python's or not in the encoding they name."""

    @property
    def lengths(self) -> Tensor:
        """Words per function: int64 of shape (n,)."""
        return self.offsets.diff()


def build(folder: Path, paths: Sequence[str], selection: Selection) -> Corpus:
    """Read, tokenise and number the functions in `paths` below `folder`: about 15 s of one core for everything.

    Shows a progress bar where stderr is a terminal. The vocabulary is counted over training functions only.
    """
    functions, files, skipped = _read(folder, paths, selection.limit)
    trained = (function.words[: selection.longest] for function in functions if not function.is_test)
    entries = vocabulary.build(vocabulary.counted(trained), selection.vocabulary_size)
    numbers = vocabulary.inverse(entries)
    encoded = [vocabulary.encode(function.words[: selection.longest], numbers) for function in functions]
    label_of, classes = _classes([function.module for function in functions], selection.smallest_class)
    return Corpus(
        words=torch.tensor([number for sequence in encoded for number in sequence], dtype=torch.int16),
        offsets=torch.tensor([0, *(len(sequence) for sequence in encoded)]).cumsum(0),
        labels=torch.tensor([label_of[function.module] for function in functions], dtype=torch.int64),
        is_test=torch.tensor([function.is_test for function in functions], dtype=torch.bool),
        classes=classes,
        vocabulary=entries,
        files=files,
        skipped=tuple(skipped),
    )


def _read(folder: Path, paths: Sequence[str], limit: int | None) -> tuple[list[Function], int, list[str]]:
    """The functions in order of path, the number of files read, and the files skipped."""
    drawn = paths if limit is None else sorted(paths, key=stable_hash)
    functions: dict[str, list[Function]] = {}
    skipped: list[str] = []
    count = 0
    for path in _shown(drawn):
        if limit is not None and count >= limit:
            break
        try:
            here = functions_in(path, (folder / path).read_bytes())
        except (SyntaxError, ValueError, TokenError, RecursionError, OSError):
            skipped.append(path)
            continue
        functions[path] = here if limit is None else here[: limit - count]
        count += len(functions[path])
    in_order = [function for path in sorted(functions) for function in functions[path]]
    return in_order, len(functions), sorted(skipped)


def _shown(paths: Sequence[str]) -> Iterable[str]:
    if not sys.stderr.isatty():
        return paths
    from rich.console import Console
    from rich.progress import track

    return track(paths, "reading the standard library (once)", console=Console(stderr=True), transient=True)


def _classes(modules: Sequence[str], smallest: int) -> tuple[dict[str, int], tuple[str, ...]]:
    """The class number of each module, and the names of the classes, sorted; `OTHER`, if there is any, is last."""
    counts = Counter(modules)
    classes = sorted(module for module, count in counts.items() if count >= smallest)
    numbers = {module: number for number, module in enumerate(classes)}
    if len(classes) < len(counts):
        numbers.update({module: len(classes) for module in counts if module not in numbers})
        classes.append(OTHER)
    return numbers, tuple(classes)
