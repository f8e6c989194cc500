"""Deep gradient compression: top-k of velocities that accumulate at each worker, with its momentum.

Idea: Each worker accumulates what it has not sent yet in its velocity v, with its own momentum m: m = momentum m + g,
then v = v + m. The largest numbers of v are sent and set to 0 in v, and also in m (`masking`), so that stale momentum
does not keep pushing. The density falls in `warmup_stages` steps over the first `warmup_rounds` rounds, each by the
same factor: 25 %, 6.3 %, 1.6 %, 0.4 % before 0.1 %. Of tensors of one dimension (biases, norms) the whole m is sent.
The optimizer after the exchange has no momentum, because the received sum includes it; weight decay belongs in that
optimizer.

Cost: 8 bytes for each number sent, 4 of them for its position, and 4 for each number of a dense tensor; every worker's
code goes to every other. Two vectors of memory. A selection over all numbers.

When it loses: As top-k: with many workers and on fast networks. With `masking` a number that is sent in every round has
no momentum left, so a density of 1 is SGD without momentum. `clip_norm` limits one worker's vector, or the part of it
that is encoded at a time. As published, divide a limit for the mean by the square root of the number of workers.

Paper: Lin, Han, Mao, Wang and Dally, "Deep gradient compression: reducing the communication bandwidth for distributed
training", ICLR 2018, section 3. The paper takes a threshold from a sample, and so sends about k numbers, the first ones
among equals; here it is exactly k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.packed import cut, ends_of, joined
from quorate.codecs.selection import check_density, largest
from quorate.core.codec import Draw, Memory, Selection, Shapes
from quorate.core.errors import ConfigurationError

MOMENTUM, VELOCITY = "momentum", "velocity"
"""The memories."""


@register("dgc")
@dataclass(frozen=True, kw_only=True)
class DGC(Selection):
    """The largest numbers of velocities that accumulate at each worker, with its own momentum."""

    keeps_few: ClassVar[bool] = True

    memories: ClassVar[tuple[str, ...]] = (MOMENTUM, VELOCITY)

    density: float = 0.001
    """Share of the numbers that are sent, above 0 and at most 1."""
    momentum: float = 0.9
    """Share of the momentum kept from one step to the next, at least 0 and below 1."""
    nesterov: bool = False
    """Whether Nesterov momentum is used."""
    masking: bool = True
    """Whether the momentum of a number is reset when the number is sent."""
    clip_norm: float = 0.0
    """Maximum norm of a worker's vector, which is clipped before it is accumulated; 0: no clipping. As in the paper,
    the vector is the worker's share of the mean: its gradient divided by the number of workers."""
    warmup_rounds: int = 0
    """Number of rounds until the density is reached."""
    warmup_stages: int = 4
    """Number of values that the density takes on its way down during these rounds."""

    def __post_init__(self) -> None:
        check_density(self.density)
        if not 0 <= self.momentum < 1:
            raise ConfigurationError(f"momentum is {self.momentum}; it must be from 0 to below 1")
        if not 0 <= self.clip_norm < math.inf:
            raise ConfigurationError(f"clip_norm is {self.clip_norm}; it must be a norm above 0, or 0 for none")
        if self.warmup_rounds < 0 or self.warmup_stages < 1:
            raise ConfigurationError(
                f"warmup_rounds is {self.warmup_rounds} and warmup_stages {self.warmup_stages}; they must be whole "
                "numbers "
                "from 0 and from 1 on"
            )

    def weighted(self, weight: float) -> DGC:
        return replace(self, clip_norm=self.clip_norm * weight) if self.clip_norm else self

    def density_in(self, round: int) -> float:
        """Return the share of numbers sent in a round."""
        if round >= self.warmup_rounds:
            return self.density
        stage = self.warmup_stages * round // self.warmup_rounds
        return float(self.density ** ((stage + 1) / (self.warmup_stages + 1)))

    @property
    def crosses_tensors(self) -> bool:
        return self.clip_norm > 0

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        g = self._clipped(x.to(memory[MOMENTUM].dtype))
        m = self.momentum * (memory[MOMENTUM] + g) if self.nesterov else self.momentum * memory[MOMENTUM] + g
        step = m + g if self.nesterov else m
        v = memory[VELOCITY] + step
        sparse, dense = self._parts(shapes, draw.round)
        places = [largest(v[begin:end].abs(), k) + begin for begin, end, k in sparse]
        where = torch.cat(places) if places else torch.empty(0, dtype=torch.int64, device=x.device)
        values = [v.index_select(0, where), *(step[begin:end] for begin, end in dense)]
        code = joined(where.to(torch.int32), *(x.float() for x in values))
        v.index_fill_(0, where, 0.0)
        for begin, end in dense:
            v[begin:end] = 0.0
        if self.masking:
            m.index_fill_(0, where, 0.0)
        return code, {MOMENTUM: m, VELOCITY: v}

    def add_decoded(self, into: Tensor, code: Tensor, shapes: Shapes, draw: Draw) -> None:
        sparse, dense = self._parts(shapes, draw.round)
        count = sum(k for _, _, k in sparse)
        lengths = [end - begin for begin, end in dense]
        where, *values = cut(code, (torch.int32, count), *((torch.float32, n) for n in (count, *lengths)))
        into.index_add_(0, where, values[0].to(into.dtype))
        for (begin, end), numbers in zip(dense, values[1:], strict=True):
            into[begin:end].add_(numbers)

    def wire_bytes(self, shapes: Shapes) -> int | None:
        """Return the bytes of a code; None where they fall with the rounds of a warm-up."""
        if self.warmup_rounds:
            return None
        sparse, dense = self._parts(shapes, 0)
        return 8 * sum(k for _, _, k in sparse) + 4 * sum(end - begin for begin, end in dense)

    def contraction(self, shapes: Shapes) -> float | None:
        """Return delta for a single vector, with empty memories."""
        if self.clip_norm or self.nesterov:
            return None
        sparse, _ = self._parts(shapes, self.warmup_rounds)
        return min((k / (end - begin) for begin, end, k in sparse), default=1.0)

    def _clipped(self, x: Tensor) -> Tensor:
        if not self.clip_norm:
            return x
        norm: Tensor = torch.linalg.vector_norm(x)
        return x * (self.clip_norm / norm.clamp(min=self.clip_norm))

    def _parts(self, shapes: Shapes, round: int) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
        """Return (begin, end, numbers sent) of the sparse tensors, and (begin, end) of those sent in full."""
        density, sparse, dense = self.density_in(round), [], []
        for shape, (begin, end) in zip(shapes, ends_of([math.prod(shape) for shape in shapes]), strict=True):
            if len(shape) < 2:
                dense.append((begin, end))
            elif begin < end:
                sparse.append((begin, end, max(1, math.floor(density * (end - begin)))))
        return sparse, dense
