"""The memory of `compress="auto"`: what stays in checkpoints, and sums over a window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from quorate.core.resize import kept
from quorate.core.vectors import Flat, Layout, bare_layout

MEASURES, TRIES, RUNS = "measures", "tries", "runs"


@dataclass(kw_only=True)
class AutoCodecState:
    """The memory of one worker, and the choice of all."""

    errors: Flat = kept("sum")
    """The part of this worker's gradients that codecs have left out."""
    owned: Flat = kept("sum")
    """The part of sums in two phases that the second encoding has left out, in the pieces that this worker owns."""
    codecs: list[str] = kept("same")
    """The codec of each coded part."""
    barred: list[str] = kept("same", default_factory=list)
    """Parts and codecs that have not agreed with dense sums, as `part:codec`."""
    stage: str = kept("same", default=MEASURES)
    sums: int = kept("same", default=0)
    """Sums in this stage."""
    draws: dict[str, int] = kept("same", default_factory=dict)
    """Sums of codecs, for their random numbers."""
    size: int = kept("same", default=0)
    """The number of workers among whom pieces were cut."""


@dataclass
class Trial:
    """Choices that take turns, the first one dense, and the seconds of their sums."""

    plans: list[list[str]]
    seconds: list[float] = field(default_factory=list)


@dataclass
class Window:
    """Sums over a window: of this worker's gradients, and of the results, by part."""

    own: dict[int, Tensor] = field(default_factory=dict)
    result: dict[int, Tensor] = field(default_factory=dict)
    count: int = 0

    def add(self, parts: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        """Add a sum: of each part this worker's gradient, and the result."""
        self.count += 1
        for part, numbers in parts.items():
            for sums, x in zip((self.own, self.result), numbers, strict=True):
                sums[part] = x.clone() if part not in sums else sums[part].add_(x)


def scratch(layout: Layout, part: int) -> AutoCodecState:
    """Return a memory of one part, for sums that count nowhere."""
    bare = bare_layout(layout)
    parts = tuple(p if number == part else replace(p, numel=0) for number, p in enumerate(bare.parts))
    of_part = replace(bare, segments=tuple(s for s in layout.segments if s.part == part), parts=parts)
    return AutoCodecState(errors=Flat.zeros(of_part), owned=Flat.zeros(of_part), codecs=[])


def by_name(x: Flat, names: set[str]) -> dict[str, Tensor]:
    """Return the numbers of tensors, as views, by name."""
    segments = enumerate(x.layout.segments)
    return {segment.name: x.segment(index).view(-1) for index, segment in segments if segment.name in names}


def cosine_of(x: Tensor, y: Tensor) -> float:
    """Return the cosine of two vectors; 1 where it has no meaning, as one of them is 0 or not finite."""
    cosine = float(torch.dot(x.double(), y.double()) / (x.double().norm() * y.double().norm()))
    return cosine if math.isfinite(cosine) else 1.0
