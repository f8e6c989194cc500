"""A small language model on every machine: the bytes of the standard library's source."""

from __future__ import annotations

import hashlib
import math
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.optim import AdamW, Optimizer
from torch.utils.data import Dataset

from quorate.core.errors import ConfigurationError
from quorate.core.workload import Imbalance, Workload
from quorate.workloads.drawing import drawn

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
"""Folders that are not walked."""
END = b"\0"
"""Between two files."""

BYTES = 256


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
    """A transformer of 1.4 million parameters predicts Python source code byte by byte.

    The text is the standard library of the running Python, without its test suites; nine tenths of the files are for
    training, one tenth for testing. Nothing is cached: reading takes a fraction of a second.

    Raises `ConfigurationError` for settings out of range, and where there is too little text.
    """

    name: ClassVar[str] = "stdlib-bytes"
    batch_size: ClassVar[int] = 16
    learning_rate: ClassVar[float] = 1e-3
    epochs: ClassVar[int] = 1
    headline: ClassVar[str] = "bits_per_byte"
    higher_is_better: ClassVar[bool] = False
    baseline: ClassVar[str] = "about 4.6, the entropy of single bytes"
    cost: ClassVar[str] = "0.3 s (1,455,552 parameters)"
    imbalance: ClassVar[Imbalance] = "injected"

    length: int = 128
    """Number of bytes in a window."""
    width: int = 192
    """Width of the layers."""
    layers: int = 3
    """Number of layers."""
    heads: int = 6
    """Number of attention heads of each layer."""
    most_bytes: int | None = None
    """Approximate number of bytes of text that are used. By default all."""
    test_windows: int = 512
    """Maximum number of test windows, spread evenly over the test text."""

    def __post_init__(self) -> None:
        for setting in ("length", "width", "layers", "heads", "test_windows", "most_bytes"):
            value = getattr(self, setting)
            if value is not None and value < 1:
                raise ConfigurationError(f"stdlib-bytes: {setting} must be at least 1, not {value}")
        if self.width % self.heads:
            raise ConfigurationError(f"stdlib-bytes: width {self.width} is not a multiple of heads, {self.heads}")

    @cached_property
    def _texts(self) -> tuple[Text, Text]:
        folder = Path(sysconfig.get_path("stdlib"))
        texts = read_texts(folder, self.most_bytes)
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


@dataclass(frozen=True)
class Text:
    """All bytes of the files for training, or for testing, in the order of their paths."""

    numbers: Tensor
    """uint8, of shape (bytes,)."""
    files: int


def read_texts(folder: Path, most: int | None) -> tuple[Text, Text]:
    """For training and for testing; files in the order of a hash of their paths, until `most` bytes are read."""
    chosen: list[tuple[str, bytes]] = []
    total = 0
    for path in sorted(_python_files(folder), key=_hash):
        if most is not None and total >= most:
            break
        chosen.append((path, (folder / path).read_bytes() + END))
        total += len(chosen[-1][1])
    is_test = [int(_hash(path)[-8:], 16) % 10 == 0 for path, _ in chosen]
    return tuple(  # type: ignore[return-value]
        _text(sorted(path for path, tests in zip(chosen, is_test, strict=True) if tests == wanted))
        for wanted in (False, True)
    )


def _text(files: list[tuple[str, bytes]]) -> Text:
    whole = bytearray(b"".join(text for _, text in files))
    return Text(torch.frombuffer(whole, dtype=torch.uint8) if whole else torch.zeros(0, dtype=torch.uint8), len(files))


def _hash(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()


def _python_files(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        below = Path(place).relative_to(folder)
        yield from ((below / file).as_posix() for file in sorted(files) if file.endswith(".py"))


class Block(nn.Module):
    """Attention to what came before, then a layer four times as wide; each after a norm, each added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_wide = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attended = nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, width) to the same."""
        n, length, width = x.shape
        parts = self.query_key_value(self.before_attention(x)).view(n, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attended(mixed.transpose(1, 2).reshape(n, length, width))
        added: Tensor = self.narrow(gelu(self.wide(self.before_wide(x))))
        return x + added


class ByteModel(nn.Module):
    """Embedding of bytes and places, `layers` blocks, a linear layer."""

    def __init__(self, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(BYTES, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, BYTES, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """Scores (n, length, 256) of what comes after each byte of `text` (n, length), int64."""
        places = torch.arange(text.shape[1], device=text.device)
        scores: Tensor = self.output(self.norm(self.blocks(self.byte(text) + self.place(places))))
        return scores
