"""Real text on every machine, with sequences of very unequal length: the functions of the standard library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from quorate.core.errors import ConfigurationError
from quorate.core.workload import Imbalance
from quorate.workloads import stdlib_corpus
from quorate.workloads.drawing import drawn
from quorate.workloads.labelled_sequences import Sequences, SequenceWorkload, at_the_ends
from quorate.workloads.stdlib_corpus import RARE_CLASSES, Corpus, Selection, build, source_paths, standard_library

WIDTH = 40
"""Characters of the longest bar."""


class FunctionDataset(Dataset[tuple[Tensor, int]]):
    """Functions of a corpus, each as its numbered words (length,) int16 and its class."""

    def __init__(self, corpus: Corpus, members: Tensor) -> None:
        self._words = corpus.words
        self._starts = corpus.offsets[members].tolist()
        self._labels = corpus.labels[members].tolist()
        self.lengths = corpus.lengths[members]
        """Words per example: int64 of shape (n,)."""
        self._sizes = self.lengths.tolist()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        start = self._starts[index]
        return self._words[start : start + self._sizes[index]], self._labels[index]


@dataclass(frozen=True, kw_only=True)
class StdlibFunctions(SequenceWorkload):
    """An LSTM classifies Python functions by their standard-library module; lengths differ widely.

    The functions are those of the standard library of the running Python, without its test suites: 17,617 in 3.11.7, of
    2 to 3,000 words. The first use reads the sources (15 s) and stores the result in the user's cache folder. Batches
    are neither bucketed nor cut, so that their cost varies with the text.

    Raises `ConfigurationError` for settings out of range and for unknown modules.
    """

    name: ClassVar[str] = "stdlib-functions"
    batch_size: ClassVar[int] = 32
    learning_rate: ClassVar[float] = 8e-3
    epochs: ClassVar[int] = 2
    headline: ClassVar[str] = "top1"
    higher_is_better: ClassVar[bool] = True
    baseline: ClassVar[str] = "0.13, the most frequent module"
    cost: ClassVar[str] = "50 ms (median; 294,837 parameters)"
    imbalance: ClassVar[Imbalance] = "natural"

    modules: tuple[str, ...] | None = None
    """Top-level packages or modules whose functions are used. By default all."""
    limit: int | None = None
    """Maximum number of functions, from files in a random but fixed order. By default all."""
    longest: int = 3000
    """Maximum number of words of a function; further words are cut off."""
    smallest_class: int = 20
    """Minimum number of functions of a class; modules with fewer form the class "other"."""
    vocabulary_size: int = 8192
    """Maximum number of entries: the classes of rare words, then the frequent words."""
    embedding: int = 32
    """Width of the embedding."""
    hidden: int = 64
    """Width of the LSTM."""
    use_cache: bool = True
    """Whether the tokenized functions are cached on disk."""

    def __post_init__(self) -> None:
        least = {"longest": 1, "smallest_class": 1, "vocabulary_size": len(RARE_CLASSES), "embedding": 1, "hidden": 1}
        if self.limit is not None:
            least["limit"] = 1
        for setting, bound in least.items():
            if getattr(self, setting) < bound:
                raise ConfigurationError(
                    f"stdlib-functions: {setting} must be at least {bound}, not {getattr(self, setting)}"
                )
        if self.vocabulary_size > 2**15:
            raise ConfigurationError(
                f"stdlib-functions: vocabulary_size must be at most 32768, not {self.vocabulary_size}"
            )

    @cached_property
    def corpus(self) -> Corpus:
        """The tokenised functions: from the cache where it has them, else read and kept there."""
        selection = Selection(**{field.name: getattr(self, field.name) for field in fields(Selection)})
        folder = standard_library()
        paths = source_paths(folder, self.modules)
        kept_at = stdlib_corpus.cache_path(folder, paths, selection) if self.use_cache else None
        corpus = stdlib_corpus.load(kept_at) if kept_at else None
        if corpus is None:
            corpus = build(folder, paths, selection)
            if len(corpus.labels) == 0:
                raise ConfigurationError(f"stdlib-functions: there is no function in the sources below {folder}")
            if kept_at:
                stdlib_corpus.save(kept_at, corpus)
        return corpus

    def dataset(self, *, train: bool) -> FunctionDataset:
        """Nine tenths for training, one for testing, split by a hash of path and name."""
        members = (self.corpus.is_test != train).nonzero().squeeze(1)
        return FunctionDataset(self.corpus, members)

    def collate(self, examples: Sequence[tuple[Tensor, int]]) -> Sequences:
        batch = super().collate(examples)
        return batch._replace(items=batch.items.long())

    def model(self, seed: int = 0) -> nn.Module:
        """Embedding, LSTM, linear layer; see `FunctionClassifier`."""
        sizes = len(self.corpus.vocabulary), len(self.corpus.classes), self.embedding, self.hidden
        return drawn(lambda: FunctionClassifier(*sizes), seed)

    def describe(self) -> list[str]:
        return described(self.corpus)


class FunctionClassifier(nn.Module):
    """Embedding, one LSTM layer read to each sequence's own end (many-to-one), a linear layer.

    The LSTM runs over the padded batch, and the output at each sequence's end is taken: the same numbers as from
    `pack_padded_sequence`, as an LSTM does not look ahead. On a CPU it is four times faster. In torch 2.13 the gradient
    of a packed sequence is filled and added once per time step, which is quadratic in the length. Measured are 0.11
    against 0.45 s a step at batch 32, 600 words.
    """

    def __init__(self, vocabulary_size: int, classes: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding, padding_idx=0)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Scores (batch, classes) of `words` (batch, longest), of which the first `lengths` (batch,) >= 1 count."""
        states, _ = self.lstm(self.embedding(words))
        scores: Tensor = self.output(at_the_ends(states, lengths))
        return scores


def described(corpus: Corpus) -> list[str]:
    """Lines: how many functions and classes, the greatest classes, and how long the functions are."""
    number = len(corpus.labels)
    tested = int(corpus.is_test.sum())
    shares = torch.bincount(corpus.labels, minlength=len(corpus.classes))
    largest = [
        f"{corpus.classes[i]} {int(shares[i]) / number:.1%}" for i in shares.argsort(descending=True, stable=True)[:5]
    ]
    skipped = f", {len(corpus.skipped)} skipped" if corpus.skipped else ""
    return [
        f"stdlib-functions: {number} functions ({number - tested} training, {tested} test) of {corpus.files} files"
        f"{skipped}; vocabulary {len(corpus.vocabulary)}",
        f"{len(corpus.classes)} classes, the largest: {', '.join(largest)}",
        *length_lines(corpus.lengths),
    ]


def length_lines(lengths: Tensor) -> list[str]:
    """Mean, quantiles and a histogram in powers of two of `lengths` (n,), n >= 1."""
    exact = lengths.double()
    median, p90, p99 = (float(q) for q in exact.quantile(torch.tensor([0.5, 0.9, 0.99], dtype=torch.float64)))
    lines = [
        f"tokens per function: mean {float(exact.mean()):.1f}, median {median:.0f}, p90 {p90:.0f}, p99 {p99:.0f}, "
        f"max {int(lengths.max())}, all {int(lengths.sum())}"
    ]
    bins = torch.bincount(torch.tensor([int(length).bit_length() - 1 for length in lengths]))
    most = int(bins.max())
    first = int(bins.nonzero()[0])
    for power, count in enumerate(bins.tolist()[first:], first):
        bar = "#" * round(WIDTH * count / most)
        lines.append(f"{2**power:>6} to {2 ** (power + 1) - 1:<5}{count:>7} {bar}".rstrip())
    return lines
