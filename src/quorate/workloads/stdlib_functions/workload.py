"""Real text on every machine, with sequences of very unequal length: the functions of the standard library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar

from torch import Tensor, nn
from torch.utils.data import Dataset

from quorate.core.errors import ConfigurationError
from quorate.workloads.drawing import drawn
from quorate.workloads.labelled_sequences import Sequences, SequenceWorkload
from quorate.workloads.stdlib_functions import cache
from quorate.workloads.stdlib_functions.corpus import Corpus, Selection, build
from quorate.workloads.stdlib_functions.description import described
from quorate.workloads.stdlib_functions.functions import source_paths, standard_library
from quorate.workloads.stdlib_functions.model import FunctionClassifier
from quorate.workloads.stdlib_functions.vocabulary import CLASSES


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
    """An LSTM names the standard-library module a Python function comes from; lengths are very unequal.

    The functions are those of the Python that runs, without its test suites: 17,617 in 3.11.7, of 2 to 3,000 words.
    The first use reads the sources (15 s) and keeps the result in the user's cache folder; batches are neither
    bucketed nor cut, so that their cost varies as the text does.

    Raises `ConfigurationError` for settings out of range and for unknown modules.
    """

    name: ClassVar[str] = "stdlib-functions"
    batch_size: ClassVar[int] = 32
    learning_rate: ClassVar[float] = 8e-3
    epochs: ClassVar[int] = 2
    headline: ClassVar[str] = "top1"
    higher_is_better: ClassVar[bool] = True

    modules: tuple[str, ...] | None = None
    """Only functions of these top-level packages or modules; None: of all."""
    limit: int | None = None
    """At most so many functions, of files in a random but fixed order; None: all."""
    longest: int = 3000
    """Words of a function beyond this are cut off."""
    smallest_class: int = 20
    """Modules with fewer functions form one class, "other"."""
    vocabulary_size: int = 8192
    """Entries at most: the classes of rare words, then the frequent words."""
    embedding: int = 32
    hidden: int = 64
    use_cache: bool = True
    """Whether what was read is kept on disk, and looked for there."""

    def __post_init__(self) -> None:
        least = {"longest": 1, "smallest_class": 1, "vocabulary_size": len(CLASSES), "embedding": 1, "hidden": 1}
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
        kept_at = cache.cache_path(folder, paths, selection) if self.use_cache else None
        corpus = cache.load(kept_at) if kept_at else None
        if corpus is None:
            corpus = build(folder, paths, selection)
            if len(corpus.labels) == 0:
                raise ConfigurationError(f"stdlib-functions: there is no function in the sources below {folder}")
            if kept_at:
                cache.save(kept_at, corpus)
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
