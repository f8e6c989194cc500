"""QSGD: each number is rounded to one of s levels of its bucket's norm, at random and unbiased.

Idea: A bucket of d numbers has one scale, its norm |v|. A number becomes sign · |v| · l / s, where l is one of the two
integers around s |v_i| / |v|. The upper one has the probability that makes the code unbiased, so there is no error to
remember. Buckets are cut from the whole vector, across the edges of tensors.

Cost: log2(2 s + 1) bits per number, rounded up (s = 127: 8, s = 7: 4, s = 1: 2), and 4 bytes per bucket. The paper's
Elias code, which is shorter if most levels are 0, is not used. Scales differ between workers, so each code is decoded
by itself. Drawing a random number for each takes more time than the rest. The expected squared error is at most min(d /
(4 s²), √d / s) of the squared norm.

When it loses: With few levels and large buckets. For s = 1 and d = 512 the error is up to 22 times the squared norm; a
smaller learning rate or larger batches have to compensate for it. A smaller bucket or `norm="max"` help.

Paper: Alistarh, Grubic, Li, Tomioka and Vojnović, "QSGD: communication-efficient SGD via gradient quantization and
encoding", NeurIPS 2017, Lemma 3.1; buckets, and the largest number as scale, are those of its experiments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.packed import WIDEST
from quorate.codecs.rounding import check_block, coded, coded_bytes, in_blocks, largest_of_each, read, stochastic
from quorate.core.codec import Codec, Draw, Memory, Shapes, numel_of
from quorate.core.errors import ConfigurationError

_SQUARABLE = 1e-18
"""A norm below this is none: squares of such numbers are 0, or nearly so."""


@register("qsgd")
@dataclass(frozen=True, kw_only=True)
class QSGD(Codec):
    """Each number as one of a few levels of its bucket's norm; unbiased."""

    is_biased: ClassVar[bool] = False

    levels: int = 127
    """s: number of levels above 0, and also below 0; 1, 7 and 127 fill 2, 4 and 8 bits."""
    bucket: int = 512
    """d: how many numbers share one norm."""
    norm: Literal["l2", "max"] = "l2"
    """Scale of a bucket: the root of the sum of squares, or the maximum absolute value."""

    def __post_init__(self) -> None:
        most = 2 ** (WIDEST - 1) - 1
        if not 1 <= self.levels <= most:
            raise ConfigurationError(f"levels is {self.levels}; it must be a number from 1 to {most}")
        check_block("bucket", self.bucket)

    @property
    def crosses_tensors(self) -> bool:
        return True

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        rows = in_blocks(x.float(), self.bucket)
        if self.norm == "l2":
            norms = torch.linalg.vector_norm(rows, dim=1).clamp(_SQUARABLE, torch.finfo(torch.float32).max)
        else:
            norms = largest_of_each(rows)
        whole = stochastic(rows, self.levels / norms, self.levels, draw.generator(x.device))
        return coded(norms / self.levels, whole, self.levels, x.numel()), memory

    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        return read(code, self.levels, numel_of(shapes), self.bucket)

    def wire_bytes(self, shapes: Shapes) -> int:
        return coded_bytes(self.levels, numel_of(shapes), self.bucket)

    def contraction(self, shapes: Shapes) -> float | None:
        d = min(self.bucket, numel_of(shapes))
        variance = min(d / (4 * self.levels**2), math.sqrt(d) / self.levels)
        return 1 - variance if variance < 1 else None
