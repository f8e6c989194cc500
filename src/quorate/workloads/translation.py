"""Sentences of unequal length through a Transformer: the published workload of machine translation, at any size."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Adam, Optimizer
from torch.utils.data import Dataset

from quorate.core.errors import ConfigurationError
from quorate.core.installed import missing_extra
from quorate.core.workload import Imbalance, Workload
from quorate.workloads.drawing import drawn
from quorate.workloads.evaluation import in_evaluation
from quorate.workloads.parallel_text import Pair, ParallelText, aligned, installed
from quorate.workloads.transformer import BEGIN, END, PADDING, SIZES, Transformer, decode

LABEL_SMOOTHING = 0.1
RESERVED = END + 1
"""The number of tokens that stand for no text."""
TESTED_TENTH = 10
"""One source sentence in this many is for testing."""

CHOICES = {"size": tuple(SIZES), "tokens": ("bytes", "bpe"), "score": ("loss", "chrf", "bleu")}
"""The values of settings that are names."""

CHRF_ORDER = 6
"""The greatest length of the n-grams of chrF."""
CHRF_BETA = 2
"""The weight of recall in chrF, in comparison with precision."""


class Sentences(NamedTuple):
    """A batch of n sentences in both languages, `PADDING` after their ends."""

    source: Tensor
    """(n, longest source), int64: the tokens of the sentence, `END`"""
    target: Tensor
    """(n, longest target + 1), int64: `BEGIN`, the tokens of the translation, `END`"""

    @property
    def tokens(self) -> int:
        """The positions that encoder and decoder compute, padding included."""
        return len(self.source) * (self.source.shape[1] + self.target.shape[1] - 1)

    def to(self, device: str | torch.device) -> Self:
        return self._replace(source=self.source.to(device), target=self.target.to(device))


class Tokens(Protocol):
    """Texts as numbers from `RESERVED` on, and the way back."""

    size: int
    """The number of entries, `RESERVED` included."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class ByteTokens:
    """The bytes of UTF-8."""

    size = RESERVED + 256

    def encode(self, text: str) -> list[int]:
        return [RESERVED + byte for byte in text.encode()]

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token - RESERVED for token in tokens if token >= RESERVED).decode(errors="replace")


class SubwordTokens:
    """Subwords of a vocabulary of `size`, learned from texts by byte-pair encoding (the package `tokenizers`)."""

    def __init__(self, texts: Sequence[str], size: int) -> None:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        self.size = size
        self._tokenizer: Any = Tokenizer(models.BPE())
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=["<padding>", "<begin>", "<end>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        self._tokenizer.train_from_iterator(texts, trainer)

    def encode(self, text: str) -> list[int]:
        numbers: list[int] = self._tokenizer.encode(text).ids
        return numbers

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens)))


class PairDataset(Dataset[tuple[Tensor, Tensor]]):
    """Pairs of a source (length,) and a target (length + 1,) as in `Sentences`, int32, without padding."""

    def __init__(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> None:
        ends = torch.tensor([0, *(len(row) for rows in zip(sources, targets, strict=True) for row in rows)]).cumsum(0)
        self._numbers = torch.tensor([n for rows in zip(sources, targets, strict=True) for row in rows for n in row])
        self._numbers = self._numbers.int()
        self._ends: list[int] = ends.tolist()
        self.lengths = ends[2::2] - ends[:-1:2]
        """Tokens per pair, of source and target together: int64 of shape (n,)."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        begin, middle, end = self._ends[2 * index : 2 * index + 3]
        return self._numbers[begin:middle], self._numbers[middle:end]


@dataclass(frozen=True, kw_only=True)
class Translation(Workload[Sentences]):
    """A Transformer translates sentences from English; their lengths differ widely.

    The training is the published one (Vaswani et al., "Attention Is All You Need", NeurIPS 2017). Labels are smoothed
    by 0.1, and the rate of Adam (β = 0.9 and 0.98) rises for `warm_up` steps and then falls as 1/√step. `size`
    "base" with 37,000 subwords has 63,082,496 parameters. Batches are neither bucketed nor cut, so that their cost
    varies with the text. The text is that of `pairs`, or all translations into `language` that are installed on the
    machine; none is downloaded.

    Raises `ConfigurationError` for settings out of range, and, when the data are read, for too few pairs. Raises
    `MissingExtra` for subwords without `tokenizers`, and for BLEU without `sacrebleu`.
    """

    name: ClassVar[str] = "translation"
    batch_size: ClassVar[int] = 16
    learning_rate: ClassVar[float] = 2e-3
    epochs: ClassVar[int] = 10
    headline: ClassVar[str] = "cross_entropy"
    higher_is_better: ClassVar[bool] = False
    baseline: ClassVar[str] = "about 3.5, the entropy of single bytes in nats"
    cost: ClassVar[str] = "1.2 s (mean), 0.7 s (median; 5,595,904 parameters)"
    imbalance: ClassVar[Imbalance] = "natural"

    pairs: tuple[str, ...] = ()
    """Two text files, source and target, aligned by lines. By default the translations on this machine."""
    language: str = "de"
    """The language of the translations on this machine, such as de, fr or pt_BR."""
    folders: tuple[str, ...] = ()
    """Folders with gettext catalogues or LibreOffice's help. By default the system's and Python's."""
    limit: int | None = None
    """Maximum number of pairs, in a random but fixed order. By default all."""
    longest: int = 1024
    """Maximum number of tokens of a sentence; pairs with a longer one are left out."""
    tokens: Literal["bytes", "bpe"] = "bytes"
    """Tokens: bytes, or subwords learned from the training pairs (needs the package tokenizers)."""
    vocabulary: int = 8000
    """Number of subwords, which both languages share; the published base has 37,000."""
    size: Literal["tiny", "small", "base"] = "small"
    """Size of the Transformer: 1, 3 or 6 layers each in encoder and decoder, 64, 256 or 512 wide."""
    dropout: float = 0.0
    """Share of activations that are dropped in training, drawn from torch's generator; the published share is 0.1."""
    warm_up: int = 1000
    """Number of steps in which the learning rate rises; published are 4,000."""
    score: Literal["loss", "chrf", "bleu"] = "loss"
    """Measure of evaluations: the loss only, or also chrF or BLEU of translations (BLEU needs sacrebleu)."""
    beams: int = 1
    """Number of beams of these translations; 1 is greedy decoding."""
    test_pairs: int = 256
    """Maximum number of test pairs, spread evenly over all."""
    use_cache: bool = True
    """Whether the pairs that were found on the machine are cached on disk."""

    def __post_init__(self) -> None:
        least = {"longest": 1, "vocabulary": RESERVED + 256, "warm_up": 1, "beams": 1, "test_pairs": 1}
        if self.limit is not None:
            least["limit"] = 2
        for setting, bound in least.items():
            if getattr(self, setting) < bound:
                raise ConfigurationError(
                    f"translation: {setting} must be at least {bound}, not {getattr(self, setting)}"
                )
        if not 0 <= self.dropout < 1:
            raise ConfigurationError(f"translation: dropout must be at least 0 and below 1, not {self.dropout:g}")
        if not re.fullmatch(r"[A-Za-z][\w@.-]*", self.language):
            raise ConfigurationError(f'translation: language must be a code such as de or pt_BR, not "{self.language}"')
        for setting, choices in CHOICES.items():
            if getattr(self, setting) not in choices:
                raise ConfigurationError(
                    f'translation: {setting} must be one of {", ".join(choices)}, not "{getattr(self, setting)}"'
                )
        if self.tokens == "bpe" and find_spec("tokenizers") is None:
            raise missing_extra("translation with subwords needs tokenizers", extra="translation", package="tokenizers")
        if self.score == "bleu" and find_spec("sacrebleu") is None:
            raise missing_extra("BLEU needs sacrebleu", extra="translation", package="sacrebleu")

    @cached_property
    def text(self) -> ParallelText:
        """Pairs for training and testing: those of `pairs`, or those on this machine."""
        if self.pairs:
            return aligned(self.pairs)
        return installed(self.language, self.folders, use_cache=self.use_cache)

    @cached_property
    def _split(self) -> tuple[list[Pair], list[Pair]]:
        """Pairs for training and for testing, split by a hash of the source sentence."""
        pairs = sorted(self.text.pairs, key=_hash)[: self.limit] if self.limit is not None else self.text.pairs
        is_test = [int(_hash(pair)[:8], 16) % TESTED_TENTH == 0 for pair in pairs]
        training = [pair for pair, tests in zip(pairs, is_test, strict=True) if not tests]
        return training, [pair for pair, tests in zip(pairs, is_test, strict=True) if tests]

    @cached_property
    def vocabulary_tokens(self) -> Tokens:
        """The tokens of both languages."""
        if self.tokens == "bytes":
            return ByteTokens()
        return SubwordTokens([text for pair in self._split[0] for text in pair], self.vocabulary)

    @cached_property
    def _datasets(self) -> tuple[PairDataset, PairDataset, int]:
        """The data for training and for testing, and the number of pairs for testing of which these were chosen."""
        training, test = (self._fitting(pairs) for pairs in self._split)
        if not training or not test:
            raise ConfigurationError(
                f"translation: there are {len(training)} training and {len(test)} test pairs ({self.text.origin}), "
                "which is too few; install more translations (pip install django), or give pairs=SOURCE,TARGET"
            )
        stride = max(1, len(test) // self.test_pairs)
        chosen = test[::stride][: self.test_pairs]
        return PairDataset(*zip(*training, strict=True)), PairDataset(*zip(*chosen, strict=True)), len(test)

    def _fitting(self, pairs: Sequence[Pair]) -> list[tuple[list[int], list[int]]]:
        tokens = self.vocabulary_tokens
        encoded = ((tokens.encode(pair.source), tokens.encode(pair.target)) for pair in pairs)
        return [
            ([*source, END], [BEGIN, *target, END])
            for source, target in encoded
            if len(source) <= self.longest and len(target) <= self.longest
        ]

    def dataset(self, *, train: bool) -> PairDataset:
        """Pairs of a source and a target; for testing at most `test_pairs`."""
        training, test, _ = self._datasets
        return training if train else test

    def collate(self, examples: Sequence[tuple[Tensor, Tensor]]) -> Sentences:
        sources, targets = zip(*examples, strict=True)
        return Sentences(*(pad_sequence(list(rows), batch_first=True).long() for rows in (sources, targets)))

    def model(self, seed: int = 0) -> nn.Module:
        """The Transformer; see `transformer.Transformer`."""
        return drawn(lambda: Transformer(self.vocabulary_tokens.size, SIZES[self.size], self.dropout), seed)

    def loss(self, model: nn.Module, batch: Sentences) -> Tensor:
        """The mean cross-entropy of the next token, in nats, with smoothed labels."""
        scores = model(batch.source, batch.target[:, :-1])
        return cross_entropy(
            scores.transpose(1, 2), batch.target[:, 1:], ignore_index=PADDING, label_smoothing=LABEL_SMOOTHING
        )

    @torch.no_grad()
    def quality(self, model: nn.Module, batch: Sentences) -> dict[str, float]:
        """The cross-entropy in nats per token, without smoothing, summed over sentences of their means.

        With `score`, also the sum of the chrF or the BLEU (0 to 100) of each sentence's translation.
        """
        counts = {"cross_entropy": 0.0, "examples": float(len(batch.source))}
        following = batch.target[:, 1:]
        with in_evaluation(model):
            scores = model(batch.source, batch.target[:, :-1])
            losses = cross_entropy(scores.transpose(1, 2), following, ignore_index=PADDING, reduction="none")
            counts["cross_entropy"] = float((losses.sum(1) / (following != PADDING).sum(1)).sum())
            if self.score != "loss":
                counts[self.score] = sum(self._scores(model, batch))
        return counts

    def _scores(self, model: nn.Module, batch: Sentences) -> list[float]:
        assert isinstance(model, Transformer)
        translations = decode(model, batch.source, self.longest, self.beams)
        texts = [self.vocabulary_tokens.decode(tokens) for tokens in translations]
        references = [self.vocabulary_tokens.decode([n for n in row if n > END]) for row in batch.target.tolist()]
        score = chrf if self.score == "chrf" else bleu
        return [score(text, reference) for text, reference in zip(texts, references, strict=True)]

    def translate(self, model: nn.Module, sentences: Sequence[str], beams: int | None = None) -> list[str]:
        """Return translations of `sentences` by a trained `model`; `beams` None is the setting."""
        assert isinstance(model, Transformer)
        rows = [torch.tensor([*self.vocabulary_tokens.encode(sentence), END]) for sentence in sentences]
        source = pad_sequence(rows, batch_first=True).to(next(model.parameters()).device)
        with in_evaluation(model):
            translations = decode(model, source, self.longest, beams or self.beams)
        return [self.vocabulary_tokens.decode(tokens) for tokens in translations]

    def optimizer(self, model: nn.Module, learning_rate: float | None = None) -> Optimizer:
        """Adam with β = 0.9 and 0.98, ε = 1e-9; `rate` has the factors of its learning rate."""
        usual = self.learning_rate if learning_rate is None else learning_rate
        return Adam(model.parameters(), lr=usual, betas=(0.9, 0.98), eps=1e-9)

    def rate(self, step: int) -> float:
        """Return the factor that makes the rate the published one: width^-½ · min(step^-½, step · warm_up^-1½).

        It rises for `warm_up` steps, with the defaults to 1, and then falls (section 5.3, equation 3).
        """
        scale = self.learning_rate * math.sqrt(SIZES[self.size].width)
        return min(1 / math.sqrt(step), step / math.sqrt(self.warm_up) ** 3) / scale

    def unigram_bound(self) -> float:
        """Return the `cross_entropy` on the test pairs of the frequencies of tokens in the training targets.

        No model that ignores the source and the preceding tokens has less, but for the difference of both parts.
        """
        training, test = self.dataset(train=True), self.dataset(train=False)
        counts = torch.ones(self.vocabulary_tokens.size)  # each once more, so that none has probability 0
        counts += torch.bincount(
            torch.cat([training[place][1][1:] for place in range(len(training))]).long(), minlength=len(counts)
        )
        nats = -(counts / counts.sum()).log()
        means = [nats[test[place][1][1:].long()].mean() for place in range(len(test))]
        return float(torch.stack(means).mean())

    def describe(self) -> list[str]:
        training, test, number = self._datasets
        lengths = training.lengths.double()
        median, p90 = lengths.quantile(torch.tensor([0.5, 0.9], dtype=torch.float64)).tolist()
        return [
            f"translation: {len(training)} training and {len(test)} of {number} test pairs, from {self.text.origin}",
            f"tokens per pair: mean {float(lengths.mean()):.1f}, median {median:.0f}, p90 {p90:.0f}, "
            f"max {int(lengths.max())}, all {int(lengths.sum())}; {self.vocabulary_tokens.size} different",
            f"cross-entropy of single tokens: {self.unigram_bound():.3f} nats",
        ]


def _hash(pair: Pair) -> str:
    return hashlib.sha256(pair.source.encode()).hexdigest()


def chrf(text: str, reference: str) -> float:
    """Return the chrF of a sentence, 0 to 100: F2 of precision and recall of character n-grams, n from 1 to 6.

    Precision and recall are means over the n of which both texts have n-grams; white space is left out. Source:
    Popović, "chrF: character n-gram F-score for automatic MT evaluation", WMT 2015.
    """
    precisions, recalls = [], []
    for n in range(1, CHRF_ORDER + 1):
        ours, theirs = _grams(text, n), _grams(reference, n)
        if ours and theirs:
            matches = (ours & theirs).total()
            precisions.append(matches / ours.total())
            recalls.append(matches / theirs.total())
    precision, recall = (sum(values) / len(values) if values else 0.0 for values in (precisions, recalls))
    weighted = CHRF_BETA**2 * precision + recall
    return 100 * (1 + CHRF_BETA**2) * precision * recall / weighted if weighted else 0.0


def _grams(text: str, n: int) -> Counter[str]:
    characters = "".join(text.split())
    return Counter(characters[place : place + n] for place in range(len(characters) - n + 1))


def bleu(text: str, reference: str) -> float:
    """Return the smoothed BLEU of a sentence, 0 to 100, as `sacrebleu` computes it."""
    from sacrebleu import sentence_bleu

    return float(sentence_bleu(text, [reference]).score)
