"""What a codec is: how a vector is written small, and read again; pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from quorate.core.draws import mixed
from quorate.core.vectors import coded_segments

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from quorate.core.vectors import Layout

Shapes = tuple[tuple[int, ...], ...]
"""Of the tensors that a vector holds, laid end to end."""

Memory = Mapping[str, "Tensor"]
"""What a codec remembers, by name: vectors as long as those that it encodes, of zeros at first."""


def shapes_in(layout: Layout) -> dict[int, Shapes]:
    """Of the coded parts of vectors laid out so, by number: the shapes of their tensors, as they lie."""
    return {number: tuple(one.shape for one in own) for number, own in coded_segments(layout).items()}


def numel_of(shapes: Shapes) -> int:
    """The length of a vector of such tensors."""
    return sum(map(math.prod, shapes))


@dataclass(frozen=True)
class Draw:
    """Where random numbers come from: what they are for, and no generator that somebody else draws from, too."""

    seed: int = 0
    """The run's."""
    round: int = 0
    """Counts the vectors that were encoded before."""
    rank: int = 0
    """Who encodes."""
    part: int = 0
    """Of a vector in several parts."""

    def generator(self, device: torch.device, *, shared: bool = False) -> torch.Generator:
        """A new generator on `device`; with `shared` the same on all workers, whatever `rank` is."""
        import torch

        found = torch.Generator(device)
        found.manual_seed(mixed(self.seed, self.round, self.part, -1 if shared else self.rank) >> 1)
        return found

    def of(self, rank: int) -> Draw:
        """The same for another worker."""
        return replace(self, rank=rank)


def elected_(sums: Tensor) -> Tensor:
    """The outcome of votes, in place, from their sums: 1 where a sum is at least 0 (a tie is 1), else -1; NaN stays."""
    import torch

    return torch.where(sums.isnan(), sums, torch.where(sums >= 0, 1.0, -1.0).to(sums.dtype), out=sums)


class Codec(ABC):
    """How a vector is written small. A frozen dataclass: its fields are its settings; it has no state.

    A vector is a 1-D tensor of finite float32 numbers (or float64, or bfloat16), on any device: several tensors of
    `shapes` laid end to end. Whoever encodes has made sure that they are finite. Randomness comes from the `Draw`
    alone, and what is remembered from one vector to the next goes in and comes out, so that a message that came to
    nothing is encoded again as if it had never been.
    """

    is_linear: ClassVar[bool] = False
    """Whether codes may be added, number by number, and their sum decodes to the sum of the vectors. Else a code is
    bytes, and each worker's is decoded by itself."""
    is_biased: ClassVar[bool] = True
    """Whether what is decoded differs in the mean from what was encoded: then the difference is to be remembered, and
    encoded with the next vector (`codecs.error_feedback`)."""
    keeps_few: ClassVar[bool] = False
    """Whether most of what is decoded is 0, at other places for each worker, so that the median of several workers is 0
    nearly everywhere."""
    memories: ClassVar[tuple[str, ...]] = ()
    """The names of what it remembers. One that is biased and has some keeps there what it leaves out."""

    @property
    def needs_feedback(self) -> bool:
        """Whether what it leaves out is lost unless `codecs.error_feedback` remembers it."""
        return self.is_biased and not self.memories

    @property
    def votes(self) -> bool:
        """Whether what is decoded are votes, 1 or -1 for each number: what comes of several is 1 where at least half
        are 1, else -1, in place of their mean."""
        return False

    @property
    def bare(self) -> Codec:
        """The same without error feedback."""
        return self

    @property
    def has_unit(self) -> bool:
        """Whether a setting has the unit of a number, so that `rescaled` makes another codec."""
        return self.rescaled(2.0) != self

    def rescaled(self, factor: float) -> Codec:
        """The same for vectors that are `factor` times as large; another one where a setting has the unit of a number.

        Workers divide a gradient by their number before they encode it, so that codes add up to the mean. A setting
        such as an absolute threshold means numbers of the gradient: it is multiplied by `factor` here.
        """
        return self

    def weighted(self, weight: float) -> Codec:
        """The same for vectors that come times their `weight` in a mean: settings are meant without it."""
        return self.rescaled(weight)

    @abstractmethod
    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        """The code of `x`, and what is remembered behind it. Neither `x` nor `memory` is changed.

        A code is a 1-D tensor on the device of `x`: of uint8, or (linear codecs) of floats, as many for any `x`.
        """

    @abstractmethod
    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        """The vector (float32, 1-D, on the code's device) that `code` stands for; `draw` is as it was in `encode`."""

    def add_decoded(self, into: Tensor, code: Tensor, shapes: Shapes, draw: Draw) -> None:
        """Add what `code` stands for to `into`, in place; faster than `decode` where most of it is zeros."""
        into.add_(self.decode(code, shapes, draw))

    @abstractmethod
    def wire_bytes(self, shapes: Shapes) -> int | None:
        """The bytes of a code of such a vector; None where that depends on the numbers."""

    def contraction(self, shapes: Shapes) -> float | None:
        """delta: at least so much of the squared norm of any vector is in its code, in the mean over draws:
        E |x - decoded|^2 <= (1 - delta) |x|^2. None where there is no such bound above 0."""
        return None
