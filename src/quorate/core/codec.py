"""The interface of codecs, which write a vector compactly and read it again; pure."""

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
"""Shapes of the tensors that a vector holds, laid end to end."""

Memory = Mapping[str, "Tensor"]
"""The memories of a codec, by name: vectors as long as those that it encodes, of zeros at first."""


def shapes_in(layout: Layout) -> dict[int, Shapes]:
    """Return the shapes of the tensors in each coded part of `layout`, by number of the part, in order of memory."""
    return {number: tuple(segment.shape for segment in segments) for number, segments in coded_segments(layout).items()}


def numel_of(shapes: Shapes) -> int:
    """Return the length of a vector of tensors of `shapes`."""
    return sum(map(math.prod, shapes))


@dataclass(frozen=True)
class Draw:
    """The purpose of random numbers, which determines them: no generator is shared with other code."""

    seed: int = 0
    round: int = 0
    """Number of vectors encoded before."""
    rank: int = 0
    part: int = 0
    """Number of the part, for a vector in several parts."""

    def generator(self, device: torch.device, *, shared: bool = False) -> torch.Generator:
        """Return a new generator on `device`; with `shared` it is the same on all workers, whatever `rank` is."""
        import torch

        generator = torch.Generator(device)
        generator.manual_seed(mixed(self.seed, self.round, self.part, -1 if shared else self.rank) >> 1)
        return generator

    def of(self, rank: int) -> Draw:
        """Return the same draw for another worker."""
        return replace(self, rank=rank)


def elected_(sums: Tensor) -> Tensor:
    """Replace sums of votes by their outcome: 1 where a sum is at least 0 (a tie is 1), else -1; NaN stays."""
    import torch

    return torch.where(sums.isnan(), sums, torch.where(sums >= 0, 1.0, -1.0).to(sums.dtype), out=sums)


class Codec(ABC):
    """A compact form of a vector. A frozen dataclass: its fields are its settings; it has no state.

    A vector is a 1-D tensor of finite float32 numbers (or float64, or bfloat16), on any device: several tensors of
    `shapes` laid end to end. The caller ensures that they are finite. Randomness comes from the `Draw` alone, and
    memory from one vector to the next is passed in and returned. So after a discarded message, the next vector is
    encoded as if there had been none.
    """

    is_linear: ClassVar[bool] = False
    """Whether codes may be added, number by number, and their sum decodes to the sum of the vectors. Else a code is
    bytes, and each worker's is decoded by itself."""
    is_biased: ClassVar[bool] = True
    """Whether the decoded vector differs in expectation from the encoded one: then the difference is to be remembered,
    and encoded with the next vector (`codecs.error_feedback`)."""
    keeps_few: ClassVar[bool] = False
    """Whether most decoded numbers are 0, at different places for each worker, so that the median of several workers
    is 0 nearly everywhere."""
    memories: ClassVar[tuple[str, ...]] = ()
    """Names of its memories. A biased codec that has some keeps there the part that a code leaves out."""

    @property
    def crosses_tensors(self) -> bool:
        """Whether the code of a number depends on the numbers of other tensors."""
        return False

    @property
    def needs_feedback(self) -> bool:
        """Whether the part that a code leaves out is lost unless `codecs.error_feedback` remembers it."""
        return self.is_biased and not self.memories

    @property
    def votes(self) -> bool:
        """Whether decoded numbers are votes, 1 or -1: the result of several is 1 where at least half are 1, else -1,
        in place of their mean."""
        return False

    @property
    def bare(self) -> Codec:
        """The same codec without error feedback."""
        return self

    @property
    def has_unit(self) -> bool:
        """Whether a setting has the unit of a number, so that `rescaled` makes another codec."""
        return self.rescaled(2.0) != self

    def rescaled(self, factor: float) -> Codec:
        """Return this codec for vectors `factor` times as large; it differs where a setting has a number's unit.

        Workers divide a gradient by their number before they encode it, so that codes add up to the mean. A setting
        such as an absolute threshold means numbers of the gradient: it is multiplied by `factor` here.
        """
        return self

    def weighted(self, weight: float) -> Codec:
        """Return this codec for vectors multiplied by their `weight` in a mean: settings are meant without it."""
        return self.rescaled(weight)

    @abstractmethod
    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        """Return the code of `x`, and the memory after it. Neither `x` nor `memory` is changed.

        A code is a 1-D tensor on the device of `x`: of uint8, or (linear codecs) of floats, as many for any `x`.
        """

    @abstractmethod
    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        """Return the vector (float32, 1-D, on the code's device) of `code`; `draw` is the one of `encode`."""

    def add_decoded(self, into: Tensor, code: Tensor, shapes: Shapes, draw: Draw) -> None:
        """Add the decoded vector to `into`, in place; faster than `decode` where most numbers are zero."""
        into.add_(self.decode(code, shapes, draw))

    @abstractmethod
    def wire_bytes(self, shapes: Shapes) -> int | None:
        """Return the bytes of a code of such a vector; None where they depend on the numbers."""

    def contraction(self, shapes: Shapes) -> float | None:
        """delta: at least so much of the squared norm of any vector is in its code, in the mean over draws:
        E |x - decoded|^2 <= (1 - delta) |x|^2. None where there is no such bound above 0."""
        return None


class Selection(Codec):
    """A codec of few numbers, which are added to zeros to decode a vector."""

    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        import torch

        decoded = torch.zeros(sum(map(math.prod, shapes)), device=code.device)
        self.add_decoded(decoded, code, shapes, draw)
        return decoded

    @abstractmethod
    def add_decoded(self, into: Tensor, code: Tensor, shapes: Shapes, draw: Draw) -> None: ...
