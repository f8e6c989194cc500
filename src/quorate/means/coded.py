"""`Coded`: every worker's code goes to all workers and is decoded; an all-reduce sums codes that can be added.

Idea: A codec compresses each part of a vector when it is ready. Codes of linear codecs (`half`, `random-k`, `mask`) are
numbers that can be added, and are summed like any vector. Other codes go to all workers (all-gather); each worker
decodes them and adds them up in the order of ranks, so that all have the same bits. Parts that are not coded are summed
unchanged. A codec's memory advances when the next sum begins. If a part is summed again, or a sum is formed again after
a death, it is encoded with the same memory as before. A part with a non-finite number is not encoded: it becomes NaN on
all workers, and nothing of it is remembered.

Cost: For a code of c bytes, each of P workers sends 2 (P - 1) / P c if codes can be added, otherwise (P - 1) c, and
decodes P codes. All of it overlaps with the backward pass, except decoding.

When it loses: With many workers and codecs that are not linear: `two-phase` sends about 2 c for any number of workers.

Paper: none of its own; the codecs have theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from quorate.core.codec import Codec, Draw, Memory, Shapes, elected_, shapes_in
from quorate.core.contracts import Wire, Work
from quorate.core.device_copies import to_device
from quorate.core.resize import kept
from quorate.core.vectors import Flat, Layout, carried, coded_segments, digest_of, header_in
from quorate.means.reducer import Reducer
from quorate.means.remembering import Remembering, is_finite, is_finite_on_device
from quorate.wire.cut import all_reduce_bytes
from quorate.wire.exchange import sum_in_order
from quorate.wire.work import Stages, Together


@dataclass(kw_only=True)
class CodedState:
    """The memory of the codec of one worker."""

    memory: dict[str, dict[str, Tensor]] = kept("sum")
    """By the codec's name for it, then by the name of the tensor: as many numbers as the tensor has."""
    sums: dict[str, int] = kept("same", default_factory=dict)
    """The number of sums so far, by the digest of the layout; random numbers are drawn for each sum."""


class Coded(Remembering):
    """A reducer that sends every code to all workers; an all-reduce sums codes that can be added.

    Vectors of other layouts are accepted as well: their tensors of the same names are encoded. One sum of each layout
    can be under way at a time.
    """

    _may_abstain: ClassVar[bool] = True
    """Whether a worker whose part is zeros casts no vote, under a codec of votes."""

    def __init__(self, layout: Layout, wire: Wire, codec: Codec, seed: int, state: CodedState | None = None) -> None:
        """Begin with an empty memory, or share the `state` of another reducer for the same tensors."""
        super().__init__(layout, wire, coded_segments(layout))
        self.codec, self._seed, self._shapes = codec, seed, shapes_in(layout)
        self._names = {
            part: [segment.name for segment in segments] for part, segments in coded_segments(layout).items()
        }
        self._salt = int(digest_of(layout)[:8], 16)
        """Different for each layout, so that each has random numbers of its own."""
        self._own: dict[int, Memory] = {}
        """The memory of each part as vectors, of which the state has views; empty for a shared state."""
        if state is None:
            state = CodedState(memory={name: {} for name in codec.memories}, sums={})
            for part, shapes in self._shapes.items():
                about = layout.parts[part]
                self._own[part] = {
                    name: torch.zeros(about.numel, dtype=about.dtype, device=about.device) for name in codec.memories
                }
                for name, vector in self._own[part].items():
                    pieces = vector.split([math.prod(shape) for shape in shapes])
                    state.memory[name].update(zip(self._names[part], pieces, strict=True))
        self._state = state
        self._state.sums.setdefault(digest_of(layout), 0)
        self._next: dict[int, Memory] = {}
        """The memory of each part as it is once the newest sum counts."""
        self._voters = 1.0
        """The sum of the weights in the newest sum, over the number of workers."""
        self._own_codec = codec
        """The codec for the vectors of this worker, at their weight."""
        self._family: dict[str, Coded] = {digest_of(layout): self}
        """All reducers that share the state, by the digest of their layouts."""

    def follows(self, before: Reducer) -> None:
        assert isinstance(before, Coded)
        old = before.state
        self._state.sums |= {digest_of(self.layout): old.sums[digest_of(before.layout)]}
        segments_before = {segment.name: segment for segment in before.layout.segments}
        segments = {segment.name: segment for segment in self.layout.segments}
        for name, tensors in self._state.memory.items():
            for tensor, numbers in tensors.items():
                if tensor in old.memory[name]:
                    x = old.memory[name][tensor]
                    numbers.copy_(carried(x, segments_before[tensor], segments[tensor]).view_as(numbers))

    @property
    def state(self) -> CodedState:
        for reducer in self._family.values():
            reducer.commit()
        return self._state

    def _begin(self) -> None:
        """Make the earlier sums of the same tensors count, as another begins."""
        own_names = {name for names in self._names.values() for name in names}
        for reducer in self._family.values():
            if reducer is self or any(not own_names.isdisjoint(names) for names in reducer._names.values()):
                reducer.commit()

    def retract(self) -> None:
        for reducer in self._family.values():
            reducer._next, reducer._is_over = {}, False

    def commit(self) -> None:
        """Make the newest sum count, if there is one: advance the memory by what it left out."""
        if self._is_over:
            for part, memory in self._next.items():
                for name, x in memory.items():
                    self._remember(part, name, x)
            self._state.sums[digest_of(self.layout)] += 1
            self._next, self._is_over = {}, False

    def _remember(self, part: int, name: str, x: Tensor) -> None:
        if part in self._own:
            self._own[part][name].copy_(x)
            return
        pieces = x.split([math.prod(shape) for shape in self._shapes[part]])
        for tensor, numbers in zip(self._names[part], pieces, strict=True):
            self._state.memory[name][tensor].copy_(numbers)

    def _memory(self, part: int) -> Memory:
        if part in self._own:
            return self._own[part]
        return {
            name: torch.cat([own[tensor] for tensor in self._names[part]]) for name, own in self._state.memory.items()
        }

    def _for_layout(self, layout: Layout) -> Coded:
        """Return the reducer of the family for vectors of `layout`."""
        if digest_of(layout) not in self._family:
            reducer = type(self)(layout, self.wire, self.codec, self._seed, self._state)
            reducer.measure(self.spending)
            reducer._family, reducer._own_codec = self._family, self._own_codec
            self._family[digest_of(layout)] = reducer
        return self._family[digest_of(layout)]

    def weighs(self, weight: float) -> None:
        own_codec = self.codec if weight == 1.0 else self.codec.weighted(weight)
        for reducer in self._family.values():
            reducer._own_codec = own_codec

    def start(self, x: Flat, kept: Any = None) -> Work[Flat]:
        reducer = self._for_layout(x.layout)
        return super().start(x, kept) if reducer is self else reducer.start(x, kept)

    def abandon(self, x: Flat) -> Work[list[Any]]:
        reducer = self._for_layout(x.layout)
        if reducer is not self:
            reducer.abandon(x)
            return super(Remembering, self).abandon(x)  # parts are launched as of this one's layout
        return super().abandon(x)

    @property
    def _goes_together(self) -> bool:
        return not self.codec.is_linear

    def _launched_together(self, parts: Mapping[int, Tensor]) -> dict[int, Work[Any]]:
        if self.codec.is_linear or all(x.device.type == "cpu" for x in parts.values()):
            return super()._launched_together(parts)
        staged = [self._staged(part, x) for part, x in parts.items()]
        joined = self.wire.on_host(torch.cat(staged)).wait()
        codes = joined.split([len(bits) for bits in staged])
        return {part: self.wire.all_gather(self._checked(part, bits)) for part, bits in zip(parts, codes, strict=True)}

    def _staged(self, part: int, x: Tensor) -> Tensor:
        """Return two flags and the code of a part on a GPU: whether `x` is finite, and whether it is not all 0."""
        with self.spending("encode"):
            draw, memory = self._draw(part, self.wire.rank), self._memory(part)
            finite = is_finite_on_device(x)
            code, self._next[part] = self._own_codec.encode(x.where(finite, 0.0), self._shapes[part], memory, draw)
            return torch.cat([torch.stack([finite, x.any()]).to(torch.uint8), code])

    def _checked(self, part: int, bits: Tensor) -> Tensor:
        """Return the code to be sent, as `_code_of` does, from the result of `_staged` on the host."""
        (is_whole, has_any), code = bits[:2].tolist(), bits[2:]
        if self._may_abstain and self.codec.votes and not has_any:
            self._next[part] = self._memory(part)
            return torch.zeros(len(code) + 1, dtype=torch.uint8)
        if not is_whole:
            self._next.pop(part)
        return code if is_whole else code[:0]

    def _launched(self, part: int, x: Tensor) -> Work[Any]:
        code = self._encoded_on_device(part, x) if x.device.type != "cpu" else self._encoded(part, x)
        return self.wire.all_reduce(code) if self.codec.is_linear else self.wire.all_gather(code)

    def _encoded_on_device(self, part: int, x: Tensor) -> Tensor:
        """Return the code of a linear codec, as `_encoded` does; the device is not waited for."""
        with self.spending("encode"):
            memory, finite = self._memory(part), is_finite_on_device(x)
            draw = self._draw(part, self.wire.rank)
            code, left = self._own_codec.encode(x.where(finite, 0.0), self._shapes[part], memory, draw)
            self._next[part] = {name: numbers.where(finite, memory[name]) for name, numbers in left.items()}
            return code.where(finite, math.nan)

    def _finish(self, into: Mapping[int, Tensor], results: Mapping[int, Any]) -> Stages[None] | None:
        device = next((x.device for x in into.values()), torch.device("cpu"))
        if device.type != "cpu" and not self.codec.is_linear:
            results = self._on_device(results, device)
        for part, x in into.items():
            codes = [results[part]] if self.codec.is_linear else results[part]
            self._add_up(part, x, codes, [self.wire.rank] if self.codec.is_linear else range(len(codes)))
        return None

    def _on_device(self, results: Mapping[int, Any], device: torch.device) -> dict[int, list[Tensor]]:
        """Return the codes of all parts on a device, by one copy."""
        codes = [code for part in results for code in results[part]]
        pieces = iter(
            to_device(torch.cat(codes), torch.empty(0, dtype=torch.uint8, device=device)).split(
                [len(code) for code in codes]
            )
        )
        return {part: [next(pieces) for _ in all_] for part, all_ in results.items()}

    def _summed(self, x: Flat, results: Sequence[Any]) -> Stages[Flat]:
        return self._elected((yield from super()._summed(x, results)))

    def _elected(self, x: Flat) -> Flat:
        """Replace sums of votes by the elected signs, in the unit of a sum, which `factor` divides by."""
        if self.codec.votes:
            self._voters = (float(header_in(x)[0]) if x.layout.header else self.wire.size) / self.wire.size
            for part in self._shapes:
                elected_(x.parts[part]).mul_(self._voters)
        return x

    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        def elected(sums: list[Tensor]) -> Tensor:
            return elected_(x).mul_(self._voters) if self.codec.votes and part in self._shapes else sums[0]

        return Together([super().again(part, x)], elected, self.wire.clock)

    def _draw(self, part: int, rank: int) -> Draw:
        number = self._state.sums[digest_of(self.layout)]
        return Draw(seed=self._seed + self._salt, round=number, rank=rank, part=part)

    def _encoded(self, part: int, x: Tensor) -> Tensor:
        with self.spending("encode"):
            draw = self._draw(part, self.wire.rank)
            self._next.pop(part, None)
            code, next_memory = self._code_of(x, self._shapes[part], self._memory(part), draw, self._own_codec)
            if next_memory is not None:
                self._next[part] = next_memory
            return code

    def _code_of(
        self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw, codec: Codec | None = None
    ) -> tuple[Tensor, Memory | None]:
        """Return the code of `x`, and the next memory.

        Of numbers that are not finite: a code that decodes to NaN, and None. `codec`: another one, for another unit or
        weight.
        """
        length = self.codec.wire_bytes(shapes)
        if self._may_abstain and self.codec.votes and length is not None and not x.any():
            return x.new_zeros(length + 1, dtype=torch.uint8), memory  # a worker without a gradient has no vote
        if is_finite(x):
            return (codec or self.codec).encode(x, shapes, memory, draw)
        code, _ = self.codec.encode(torch.zeros_like(x), shapes, memory, draw)
        return (torch.full_like(code, math.nan) if self.codec.is_linear else code[:0]), None

    def _add_code(self, into: Tensor, code: Tensor, shapes: Shapes, draw: Draw) -> None:
        """Add the decoded numbers of `code` to `into`: NaN where the sender had a non-finite number."""
        if self.codec.votes and code.numel() > (self.codec.wire_bytes(shapes) or 0):
            return  # no vote
        if code.numel():
            self.codec.add_decoded(into, code, shapes, draw)
        else:
            into.fill_(math.nan)  # nothing, where there are no numbers

    def _add_up(self, part: int, into: Tensor, codes: Sequence[Tensor], ranks: Sequence[int]) -> None:
        """Write the sum of the decoded `codes` of `ranks`, added up in this order."""
        with self.spending("decode"):
            into.zero_()
            for rank, code in zip(ranks, codes, strict=True):
                self._add_code(into, code, self._shapes[part], self._draw(part, rank))

    def wire_bytes(self, size: int) -> int | None:
        total = 0
        for number, part in enumerate(self.layout.parts):
            nbytes: int | None = part.numel * part.dtype.itemsize
            if number in self._shapes:
                nbytes = self.codec.wire_bytes(self._shapes[number])
            if nbytes is None:
                return None
            total += (size - 1) * nbytes if self._is_gathered(number) else all_reduce_bytes(nbytes, size)
        return total

    def _is_gathered(self, part: int) -> bool:
        """Return whether every worker gets each worker's message of a part, and not only their sum."""
        return part in self._shapes and not self.codec.is_linear

    # -- for sums that are formed again

    def message(self, x: Flat) -> tuple[Tensor, ...]:
        reducer = self._for_layout(x.layout)
        if reducer is not self:
            return reducer.message(x)
        return tuple(
            self._encoded(part, x.parts[part]) if part in self._shapes else x.parts[part]
            for part in range(len(x.parts))
        )

    def sum_of(
        self, messages: Sequence[tuple[Tensor, ...]], ranks: Sequence[int], hosts: Sequence[int], like: Flat
    ) -> Flat:
        reducer = self._for_layout(like.layout)
        if reducer is not self:
            return reducer.sum_of(messages, ranks, hosts, like)
        sums = Flat.zeros(like.layout)
        for part, into in enumerate(sums.parts):
            column = [message[part].to(into.device) for message in messages]
            if part not in self._shapes:
                into.copy_(sum_in_order(column, list(hosts)))
            elif self.codec.is_linear:
                self._add_up(part, into, [sum_in_order(column, list(hosts))], [self.wire.rank])
            else:
                self._add_up(part, into, column, ranks)
        return self._elected(sums)


class ClippedCodes(Coded):
    """Every worker's code goes to all, and decoded tensors longer than usual are shortened before the sum.

    Idea: As `Coded`. All workers decode all codes, and compute the L2 norm of each worker's tensor. A tensor that is
    longer than the lower median of these norms is shortened to it. So one worker whose update is out of proportion
    moves the sum no further than usual. Tensors of zeros, of workers without an update, have no part in the median. All
    do the same with the same codes, so all have the same bits.

    Cost: As `Coded`, P vectors of a part in memory while it is decoded, and a pass over each.

    When it loses: Where workers have unequal work: the longer updates of those that have made more steps are shortened.

    Paper: none of its own; as in the public code of SparseLoCo (Sarfi et al., 2025, arXiv 2508.15706).
    """

    def _add_up(self, part: int, into: Tensor, codes: Sequence[Tensor], ranks: Sequence[int]) -> None:
        with self.spending("decode"):
            vectors = torch.zeros(len(codes), into.numel(), dtype=into.dtype, device=into.device)
            for vector, rank, code in zip(vectors, ranks, codes, strict=True):
                self._add_code(vector, code, self._shapes[part], self._draw(part, rank))
            clip_to_median_(vectors, self._shapes[part])
            into.copy_(vectors[0])
            for vector in vectors[1:]:
                into.add_(vector)


def clip_to_median_(vectors: Tensor, shapes: Shapes) -> None:
    """Shorten, in place, each tensor of each vector to the lower median of the norms of that tensor, zeros left out.

    Args:
        vectors: (workers, numbers), each row tensors of `shapes` end to end. A row with NaN keeps it.
    """
    for tensors in vectors.split([math.prod(shape) for shape in shapes], dim=1):
        norms = torch.linalg.vector_norm(tensors, dim=1)
        median = norms.where(norms > 0, math.nan).nanmedian()
        tensors.mul_(torch.where(norms > median, median / norms, 1.0).unsqueeze(1))
