"""Threshold: the numbers of at least a given absolute value, and their positions.

Idea: A number is sent, with its position, if it is large enough: `at` times the root mean square of its tensor, or `at`
itself. What is left out is remembered and added to the next vector, so each number is sent once enough of it has
accumulated. With `of="rms"` the largest number of each tensor is always sent, because otherwise a tensor of few numbers
might never send one.

Cost: 8 bytes for each number sent, 4 of them for its position, and 8 for their count. The count differs from worker to
worker and from step to step. There is no selection, only one comparison. One vector of memory. At 3 root mean squares,
0.3 % of normally distributed numbers are sent.

When it loses: A fixed `at` sends everything at the start of training and nothing at the end, or the reverse, because
gradients change in size. Codes of different lengths need one more message than codes of equal length.

Paper: Strom, "Scalable distributed DNN training using commodity GPU cloud computing", Interspeech 2015, there with
±`at` in place of the number; Sahu, Dutta, Abdelmoniem, Banerjee, Canini and Kalnis, "Rethinking gradient sparsification
as total error minimization", NeurIPS 2021 (numbers unchanged).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.packed import cut, ends_of, joined
from quorate.core.codec import Draw, Memory, Selection, Shapes
from quorate.core.errors import ConfigurationError

_HEAD = 8
"""Bytes of the count."""


@register("threshold")
@dataclass(frozen=True, kw_only=True)
class Threshold(Selection):
    """The numbers of at least a given absolute value, with their positions."""

    keeps_few: ClassVar[bool] = True

    at: float = 3.0
    """The threshold, above 0."""
    of: Literal["rms", "absolute"] = "rms"
    """Unit of the threshold: the root mean square of each tensor, or absolute values."""

    def __post_init__(self) -> None:
        if not 0 < self.at < math.inf:
            raise ConfigurationError(f"at is {self.at}; it must be a threshold above 0")

    def rescaled(self, factor: float) -> Threshold:
        return replace(self, at=self.at * factor) if self.of == "absolute" else self

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        x = x.float()
        sizes, places = x.abs(), list[Tensor]()
        for begin, end in ends_of([math.prod(shape) for shape in shapes]):
            if begin < end:
                places.append(self._large(sizes[begin:end]).nonzero().view(-1) + begin)
        where = torch.cat(places) if places else torch.empty(0, dtype=torch.int64, device=x.device)
        count = torch.tensor([where.numel()], device=x.device)
        return joined(count, where.to(torch.int32), x.index_select(0, where)), memory

    def _large(self, sizes: Tensor) -> Tensor:
        if self.of == "absolute":
            return sizes >= self.at
        norm = torch.linalg.vector_norm(sizes)
        least = torch.minimum(norm * (self.at / math.sqrt(sizes.numel())), sizes.amax())
        return (sizes >= least) & (sizes > 0)

    def add_decoded(self, into: Tensor, code: Tensor, shapes: Shapes, draw: Draw) -> None:
        count = int(cut(code, (torch.int64, 1))[0])
        where, values = cut(code[_HEAD:], (torch.int32, count), (torch.float32, count))
        into.index_add_(0, where, values.to(into.dtype))

    def wire_bytes(self, shapes: Shapes) -> None:
        return None

    def contraction(self, shapes: Shapes) -> float | None:
        return 1 / max(1, *map(math.prod, shapes)) if self.of == "rms" and shapes else None
