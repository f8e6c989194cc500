"""A small language model on every machine: the bytes of the standard library's source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer
from torch.utils.data import Dataset

from quorate.core.errors import ConfigurationError
from quorate.core.workload import Workload
from quorate.workloads.drawing import drawn
from quorate.workloads.stdlib_bytes.model import ByteModel
from quorate.workloads.stdlib_bytes.text import Text, read, standard_library


class Windows(NamedTuple):
    """A batch of n pieces of text."""

    text: Tensor
    """(n, length + 1), int64: what is read, and the byte after it."""

    def to(self, device: str | torch.device) -> Self:
        return self._replace(text=self.text.to(device))


class WindowDataset(Dataset[Tensor]):
    """Pieces of a text one after the other, each with the byte that follows: (length + 1,) uint8."""

    def __init__(self, text: Text, length: int, most: int | None = None) -> None:
        self._numbers, self._length = text.numbers, length
        there = max(0, (len(text.numbers) - 1) // length)
        self._count = there if most is None else min(most, there)
        self._stride = (there // self._count) * length if self._count else length

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        if not 0 <= index < self._count:
            raise IndexError(index)
        begin = index * self._stride
        return self._numbers[begin : begin + self._length + 1]


@dataclass(frozen=True, kw_only=True)
class StdlibBytes(Workload[Windows]):
    """A transformer of 1.4 million parameters learns Python's own source, byte by byte.

    The text is that of the Python that runs, without its test suites; nine tenths of the files train, one tests.
    Nothing is kept on disk: reading takes a fraction of a second.

    Raises `ConfigurationError` for settings out of range, and where there is too little text.
    """

    name: ClassVar[str] = "stdlib-bytes"
    batch_size: ClassVar[int] = 16
    learning_rate: ClassVar[float] = 1e-3
    epochs: ClassVar[int] = 1
    headline: ClassVar[str] = "bits_per_byte"
    higher_is_better: ClassVar[bool] = False

    length: int = 128
    """Bytes of a window."""
    width: int = 192
    layers: int = 3
    heads: int = 6
    most_bytes: int | None = None
    """About so many of the text are used; None: all."""
    test_windows: int = 512
    """At most so many windows are tested on, evenly over the text for testing."""

    def __post_init__(self) -> None:
        for setting in ("length", "width", "layers", "heads", "test_windows", "most_bytes"):
            value = getattr(self, setting)
            if value is not None and value < 1:
                raise ConfigurationError(f"stdlib-bytes: {setting} must be at least 1, not {value}")
        if self.width % self.heads:
            raise ConfigurationError(f"stdlib-bytes: width {self.width} is not a multiple of heads, {self.heads}")

    @cached_property
    def _texts(self) -> tuple[Text, Text]:
        folder = standard_library()
        texts = read(folder, self.most_bytes)
        if min(len(text.numbers) for text in texts) <= self.length:
            raise ConfigurationError(
                f"stdlib-bytes: the sources below {folder}, as far as they are used, are shorter than a window of "
                f"{self.length} bytes"
            )
        return texts

    def dataset(self, *, train: bool) -> WindowDataset:
        """Windows one after the other; for testing at most `test_windows`."""
        text = self._texts[0 if train else 1]
        return WindowDataset(text, self.length, None if train else self.test_windows)

    def collate(self, examples: Sequence[Tensor]) -> Windows:
        return Windows(torch.stack(list(examples)).long())

    def model(self, seed: int = 0) -> nn.Module:
        return drawn(lambda: ByteModel(self.length, self.width, self.layers, self.heads), seed)

    def loss(self, model: nn.Module, batch: Windows) -> Tensor:
        """The mean cross-entropy of the next byte, in nats."""
        return self._losses(model, batch).mean()

    def _losses(self, model: nn.Module, batch: Windows) -> Tensor:
        scores = model(batch.text[:, :-1])
        return cross_entropy(scores.transpose(1, 2), batch.text[:, 1:], reduction="none")

    @torch.no_grad()
    def quality(self, model: nn.Module, batch: Windows) -> dict[str, float]:
        """The cross-entropy in bits, summed over windows of their means ("bits_per_byte")."""
        bits = self._losses(model, batch).mean(1).sum() / math.log(2)
        return {"bits_per_byte": float(bits), "examples": float(len(batch.text))}

    def optimizer(self, model: nn.Module, learning_rate: float | None = None) -> Optimizer:
        """AdamW, weight decay 0.1."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        return AdamW(model.parameters(), lr=rate, weight_decay=0.1)

    def describe(self) -> list[str]:
        training, test = self._texts
        counts = f"{len(training.numbers)} bytes of {training.files} files", f"{len(test.numbers)} of {test.files}"
        return [f"stdlib-bytes: {counts[0]} train, {counts[1]} test, in windows of {self.length} bytes"]
