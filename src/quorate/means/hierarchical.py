"""Hierarchical: dense on each host, compressed between hosts.

Idea: The workers of a host sum their vectors, each one piece of them (reduce-scatter). Each worker encodes its piece of
the host's sum, once, and sends it to the owners of the same piece on the other hosts. The decoded pieces give the sum
of all, which the workers of the host then share (all-gather). So a codec is used only on the network, and only once per
host: a host's sum has less noise than a worker's own vector. What a code leaves out is remembered by the owner of the
piece, and goes into its host's next sum.

Cost: With H hosts, H - 1 codes of the vector leave and reach each host, whatever its number of workers (linear codecs:
as an all-reduce of codes). Within the host two exchanges of dense pieces. The first overlaps with the backward pass,
the others come after it. On one host nothing is compressed. After a death codes go from every worker to every worker.

When it loses: On one host. Where each host has one worker: it is `gather` with two more exchanges.

Paper: Lin et al., "Deep gradient compression", ICLR 2018, section 4 (dense within a node, sparse between nodes).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from quorate.codecs.error_feedback import ERROR
from quorate.core.codec import Codec, Draw
from quorate.core.contracts import Wire, Work
from quorate.core.members import by_host
from quorate.core.vectors import Layout
from quorate.means.coded import Coded, CodedState
from quorate.wire.cut import all_reduce_bytes
from quorate.wire.work import Stages


class Hierarchical(Coded):
    """A reducer that is dense on each host, and compressed between hosts."""

    def __init__(self, layout: Layout, wire: Wire, codec: Codec, seed: int, state: CodedState | None = None) -> None:
        super().__init__(layout, wire, codec, seed, state)
        self._hosts = by_host(wire.host_of, range(wire.size))
        self._owners = min(map(len, self._hosts))
        """The number of pieces of a vector: each is owned by one of the first workers of each host."""

    # A newcomer takes part in sums by messages only, and is in no group.

    @cached_property
    def _on_host(self) -> list[int]:
        return next(own for own in self._hosts if self.wire.rank in own)

    @cached_property
    def _inner(self) -> Wire:
        return self.wire.group(self._on_host)

    @cached_property
    def _piece(self) -> int:
        return self._on_host.index(self.wire.rank)

    @cached_property
    def _counterparts(self) -> list[int]:
        """The owners of the same piece, one on each host; empty where this worker owns none."""
        return [own[self._piece] for own in self._hosts] if self._piece < self._owners else []

    @cached_property
    def _outer(self) -> Wire | None:
        return self.wire.group(self._counterparts) if self._counterparts else None

    def _pieces(self, part: int) -> list[tuple[int, int]]:
        """Return where the piece of each worker of a host begins and ends; empty for those that own none."""
        numel, workers = self.layout.parts[part].numel, self._inner.size
        ends = [round(numel * min(place, self._owners) / self._owners) for place in range(workers + 1)]
        return list(pairwise(ends))

    def _launched(self, part: int, x: Tensor) -> Work[Any]:
        self._next.pop(part, None)
        memory = self._memory(part)
        numbers = x + memory[ERROR] if ERROR in memory else x.clone()
        return self._inner.all_to_all([numbers[begin:end] for begin, end in self._pieces(part)])

    def _finish(self, into: Mapping[int, Tensor], results: Mapping[int, list[Tensor]]) -> Stages[None]:
        between: dict[int, Work[Any]] = {}
        pieces: dict[int, Tensor] = {}
        for part, own in results.items():
            pieces[part] = torch.stack(own).sum(0) if own[0].numel() else own[0]
            if self._outer is not None and self._outer.size > 1:
                code = self._code_of_piece(part, pieces[part])
                linear = self.codec.is_linear
                between[part] = self._outer.all_reduce(code) if linear else self._outer.all_gather(code)
            elif ERROR in self.codec.memories:
                self._next[part] = {ERROR: torch.zeros_like(into[part])}
        shared = {}
        for part, piece in pieces.items():
            if part in between:
                self._decode(part, piece, (yield between[part]))
            shared[part] = self._inner.all_gather(piece)
        for part, work in shared.items():
            torch.cat((yield work), out=into[part])

    def _draw_of(self, part: int, rank: int) -> Draw:
        """Return the draw of a piece; a shared one is shared among the owners of the same piece."""
        draw = self._draw(part, rank)
        return Draw(seed=draw.seed, round=draw.round, rank=rank, part=part * self._owners + self._piece)

    def _code_of_piece(self, part: int, piece: Tensor) -> Tensor:
        """Return the code of this worker's piece of its host's sum, errors included; remember what it leaves out."""
        with self.spending("encode"):
            memory = {name: torch.zeros_like(piece) for name in self.codec.memories}
            draw = self._draw_of(part, self.wire.rank)
            of_sums = self.codec.rescaled(self._inner.size)  # so its numbers are as large as those of the host's mean
            code, left = self._code_of(piece, ((piece.numel(),),), memory, draw, of_sums)
            if left is not None and ERROR in left:
                begin, end = self._pieces(part)[self._piece]
                error = torch.zeros(self.layout.parts[part].numel, dtype=piece.dtype, device=piece.device)
                error[begin:end] = left[ERROR]
                self._next[part] = {ERROR: error}
            return code

    def _decode(self, part: int, piece: Tensor, result: Any) -> None:
        with self.spending("decode"):
            codes = [result] if self.codec.is_linear else result
            ranks = [self.wire.rank] if self.codec.is_linear else self._counterparts
            piece.zero_()
            for rank, code in zip(ranks, codes, strict=True):
                self._add_code(piece, code, ((piece.numel(),),), self._draw_of(part, rank))

    def wire_bytes(self, size: int) -> int | None:
        """See `Reducer.wire_bytes`; includes bytes that stay on the host, and counts linear codes as all-gathered."""
        total, others = 0, 1 if self._outer is None else self._outer.size
        for number, part in enumerate(self.layout.parts):
            if number not in self._shapes:
                total += all_reduce_bytes(part.numel * part.dtype.itemsize, size)
                continue
            begin, end = self._pieces(number)[self._piece]
            code = self.codec.wire_bytes(((end - begin,),)) if others > 1 else 0
            if code is None:
                return None
            kept = (end - begin) * part.dtype.itemsize
            total += part.numel * part.dtype.itemsize - kept + (others - 1) * code + (self._inner.size - 1) * kept
        return total
