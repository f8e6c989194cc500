"""DeMo: the fast-moving part of each worker's own momentum, as a few cosines per chunk.

Idea: A worker adds its gradient to its momentum, m = decay m + g, cuts that into chunks of 64 numbers, and writes each
chunk as a sum of cosines. The cosines with the largest coefficients are sent and subtracted from the momentum; slow
changes stay there and accumulate, so the workers' momenta always differ. The optimizer after the exchange has no
momentum of its own. The published optimizer steps by the sign of the received mean; that is not part of the codec.

Cost: 4 bytes and the bits of a position (6 with chunks of 64) for each cosine: 2.4 bits per number if 4 of 64 are sent.
Each code is decoded by itself. One vector of memory. Two products with a matrix of 64 by 64, and a selection in each
chunk.

When it loses: Where neighbouring numbers of a tensor are unrelated: cosines hold no more than single numbers, and top-k
over all numbers finds larger ones. Without the sign in the optimizer the published settings do not carry over.

Paper: Peng, Quesnelle and Kingma, "DeMo: decoupled momentum optimization", 2024, Algorithm 1. The paper cuts matrices
into squares of 64 by 64 and uses cosines of both dimensions; here the whole vector is cut, across tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.packed import cut, joined, pack, packed_bytes, pieces, unpack, width_for
from quorate.codecs.rounding import block_count, in_blocks
from quorate.core.codec import Codec, Draw, Memory, Shapes, numel_of
from quorate.core.errors import ConfigurationError

MOMENTUM = "momentum"
"""The memory: the part of all gradients that has not been sent."""
_LARGEST = 1024
"""Most numbers of a chunk: a table of its square is kept."""


@register("demo")
@dataclass(frozen=True, kw_only=True)
class DeMo(Codec):
    """The largest cosines in chunks of each worker's own momentum, which are subtracted from it."""

    memories: ClassVar[tuple[str, ...]] = (MOMENTUM,)

    decay: float = 0.999
    """Share of the momentum kept from one step to the next, from 0 to 1."""
    chunk: int = 64
    """Length of a chunk."""
    keep: int = 4
    """How many cosines of each chunk are sent."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ConfigurationError(f"decay is {self.decay}; it must be from 0 to 1")
        if not 1 <= self.chunk <= _LARGEST:
            raise ConfigurationError(f"chunk is {self.chunk}; it must be a number of numbers from 1 to {_LARGEST}")
        if not 1 <= self.keep <= self.chunk:
            raise ConfigurationError(
                f"keep is {self.keep}; it must be a number of waves from 1 to {self.chunk}, the chunk"
            )

    @property
    def crosses_tensors(self) -> bool:
        return True

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        momentum = self.decay * memory[MOMENTUM] + x.to(memory[MOMENTUM].dtype)
        rows, cosines = in_blocks(momentum.float(), self.chunk), _cosines(self.chunk, x.device).T
        values = torch.empty(len(rows), self.keep, device=x.device)
        places = torch.empty(values.shape, dtype=torch.int32, device=x.device)
        for piece in pieces(len(rows), x.device, of=self.chunk):
            waves = rows[piece] @ cosines
            where = waves.abs().topk(self.keep, dim=1, sorted=False).indices
            values[piece], places[piece] = waves.gather(1, where), where
        code = joined(values, pack(places.view(-1), width_for(self.chunk)))
        return code, {MOMENTUM: momentum.sub_(self.decode(code, shapes, draw))}

    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        numel = numel_of(shapes)
        rows, width = block_count(numel, self.chunk), width_for(self.chunk)
        count = rows * self.keep
        values, packed = cut(code, (torch.float32, count), (torch.uint8, packed_bytes(count, width)))
        waves = torch.zeros(rows, self.chunk, device=code.device)
        where = unpack(packed, width, count).long()
        waves.scatter_(1, where.view(rows, self.keep), values.view(rows, self.keep))
        return (waves @ _cosines(self.chunk, code.device)).view(-1)[:numel]

    def wire_bytes(self, shapes: Shapes) -> int:
        count = block_count(numel_of(shapes), self.chunk) * self.keep
        return 4 * count + packed_bytes(count, width_for(self.chunk))

    def contraction(self, shapes: Shapes) -> float | None:
        """Return delta for a single vector, with an empty memory."""
        return self.keep / self.chunk


@lru_cache(maxsize=16)
def _cosines(size: int, device: torch.device) -> Tensor:
    """Return the waves of a chunk as orthonormal rows: the discrete cosine transform of the second kind."""
    k = torch.arange(size, dtype=torch.float64).unsqueeze(1)
    waves = torch.cos(math.pi / size * (torch.arange(size, dtype=torch.float64) + 0.5) * k) * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    return waves.float().to(device)
