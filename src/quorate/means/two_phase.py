"""Two phases: each worker sums one piece of all codes, and compresses the sum again for all.

Idea: A part is cut into as many pieces as there are workers. Each worker encodes every piece, and sends it to its
owner; the owner decodes and adds them up, encodes the sum, and sends that to all. So the bytes that a worker sends do
not grow with the number of workers, as they do if every code goes to all. What the first encoding leaves out is
remembered by the worker, and what the second leaves out by the owner of the piece; both are sent later.

Cost: Each worker sends about 2 (P - 1) / P codes, in two exchanges: the first overlaps with the backward pass, the
second comes after it. Everything is encoded twice and each piece decoded P times; one more vector of memory. After a
death codes go to all workers, in one phase, and surviving owners add their memory of pieces to their own memory.

When it loses: With few workers, where sending every code to all takes fewer bytes. With codecs whose errors add up: the
sum is compressed twice.

Paper: Tang et al., "1-bit Adam: communication efficient large-scale training with Adam's convergence speed", ICML 2021,
section 5 (compressed all-reduce); the two memories are those of Tang et al., "DoubleSqueeze", ICML 2019, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from quorate.codecs.error_feedback import ERROR, ErrorFeedback
from quorate.core.codec import Draw, Memory
from quorate.core.contracts import Wire, Work
from quorate.core.resize import kept
from quorate.core.vectors import Flat, Layout
from quorate.means.coded import Coded, CodedState
from quorate.means.dense import Dense
from quorate.means.reducer import Measured, Reducer
from quorate.means.remembering import is_finite
from quorate.means.wrapped import Wrapped
from quorate.wire.cut import all_reduce_bytes
from quorate.wire.work import Stages


@dataclass(kw_only=True)
class TwoPhaseState(CodedState):
    """The memory of the codec of one worker, and of the pieces that it owns."""

    owned: dict[str, Tensor] = kept("sum", default_factory=dict)
    """By the name of the tensor: what the second encoding left out; zeros where others own it."""
    size: int = kept("same", default=0)
    """The number of workers among whom pieces were cut."""


class TwoPhase(Coded):
    """Each worker sums one piece of all codes, and encodes the sum again for all."""

    _state: TwoPhaseState

    def __init__(self, layout: Layout, wire: Wire, codec: Any, seed: int, state: CodedState | None = None) -> None:
        super().__init__(layout, wire, codec, seed, state)
        self._codec_of_sums = self.codec.rescaled(wire.size)
        """The codec for sums: workers have divided by their number, so sums are as large as a gradient."""
        if state is None:
            owned = {name: torch.zeros_like(x) for name, x in self._state.memory.get(ERROR, {}).items()}
            self._state = TwoPhaseState(memory=self._state.memory, sums=self._state.sums, owned=owned, size=wire.size)
        self._next_owned: dict[int, Tensor] = {}
        """For each part, the memory of the piece of this worker as it is once the newest sum counts."""
        self._chosen: dict[str, Tensor] = {}
        """By the name of the tensor: the places of the numbers that are encoded; a missing name: all. Shared."""
        self._places: dict[int, Tensor | None] = {}
        """For each part, the places of the numbers that are encoded; None: all."""

    def follows(self, before: Reducer) -> None:
        """Take over the memory of the tensors that both have; pieces are cut again."""
        assert isinstance(before, TwoPhase)
        before.commit()
        if self._state.owned:
            before._release_pieces()
        super().follows(before)

    def choose(self, chosen: dict[str, Tensor]) -> None:
        """Encode only these places of the tensors named, from the next sum on; equal on all workers.

        Other numbers of these tensors are 0 in sums. After a death all numbers are encoded.
        """
        for reducer in self._family.values():
            assert isinstance(reducer, TwoPhase)
            reducer.commit()
            reducer._chosen, reducer._places = chosen, {}

    def _for_layout(self, layout: Layout) -> Coded:
        reducer = super()._for_layout(layout)
        assert isinstance(reducer, TwoPhase)
        if reducer._chosen is not self._chosen:
            reducer._chosen, reducer._places = self._chosen, {}
        return reducer

    def _places_in(self, part: int) -> Tensor | None:
        if part not in self._places:
            places, begin = list[Tensor](), 0
            for name, shape in zip(self._names[part], self._shapes[part], strict=True):
                numel = math.prod(shape)
                places.append(begin + self._chosen.get(name, torch.arange(numel)))
                begin += numel
            is_whole = not self._chosen.keys() & set(self._names[part])
            self._places[part] = None if is_whole else torch.cat(places).to(self.layout.parts[part].device)
        return self._places[part]

    def _picked(self, part: int, x: Tensor) -> Tensor:
        """Return the numbers of a part that are encoded."""
        places = self._places_in(part)
        return x if places is None else x[places]

    def _put_back(self, part: int, numbers: Tensor, into: Tensor) -> Tensor:
        """Write the numbers of a part that are encoded into a vector of all of them."""
        places = self._places_in(part)
        return into.copy_(numbers) if places is None else into.index_copy_(0, places, numbers)

    def _memory(self, part: int) -> Memory:
        return {name: self._picked(part, vector) for name, vector in super()._memory(part).items()}

    def _remember(self, part: int, name: str, x: Tensor) -> None:
        if self._places_in(part) is not None:
            x = self._put_back(part, x, super()._memory(part)[name].clone())
        super()._remember(part, name, x)

    def _pieces(self, part: int) -> list[tuple[int, int]]:
        places, size = self._places_in(part), self.wire.size
        numel = self.layout.parts[part].numel if places is None else len(places)
        ends = [round(numel * rank / size) for rank in range(size + 1)]
        return list(pairwise(ends))

    def retract(self) -> None:
        super().retract()
        for reducer in self._family.values():
            assert isinstance(reducer, TwoPhase)
            reducer._next_owned = {}

    def commit(self) -> None:
        if self._is_over:
            for part, left in self._next_owned.items():
                whole = torch.zeros(self.layout.parts[part].numel, dtype=left.dtype, device=left.device)
                pieces, own = self._pieces(part), self._picked(part, whole)
                begin, end = pieces[self.wire.rank]
                own[begin:end] = left
                self._write_owned(part, whole if own is whole else self._put_back(part, own, whole))
            self._next_owned = {}
        super().commit()

    def _owned(self, part: int) -> Tensor:
        return self._picked(part, torch.cat([self._state.owned[tensor] for tensor in self._names[part]]))

    def _write_owned(self, part: int, whole: Tensor) -> None:
        pieces = whole.split([math.prod(shape) for shape in self._shapes[part]])
        for tensor, numbers in zip(self._names[part], pieces, strict=True):
            self._state.owned[tensor].copy_(numbers)

    def _begin(self) -> None:
        super()._begin()
        if self._state.size != self.wire.size:
            self._release_pieces()

    def _release_pieces(self) -> None:
        """Add the memory of pieces to the errors of this worker, as others own the pieces from here on."""
        self._state.size = self.wire.size
        for tensor, left in self._state.owned.items():
            self._state.memory[ERROR][tensor].add_(left)
            left.zero_()

    # -- the first phase

    def _launched(self, part: int, x: Tensor) -> Work[Any]:
        return self.wire.all_to_all(self._codes_of_pieces(part, x))

    def _piece_draw(self, part: int, owner: int, rank: int, phase: int) -> Draw:
        draw = self._draw(part, rank)
        return Draw(seed=draw.seed + phase, round=draw.round, rank=rank, part=part * self.wire.size + owner)

    def _codes_of_pieces(self, part: int, x: Tensor) -> list[Tensor]:
        """Return the code of each owner's piece; if one of them is not finite, the memory does not change."""
        with self.spending("encode"):
            x = self._picked(part, x)
            numbers = x if is_finite(x) else torch.full_like(x, math.nan)
            memory, codes, memories = self._memory(part), list[Tensor](), list[Memory | None]()
            for owner, (begin, end) in enumerate(self._pieces(part)):
                own = {name: vector[begin:end] for name, vector in memory.items()}
                draw = self._piece_draw(part, owner, self.wire.rank, 1)
                code, left = self._code_of(numbers[begin:end], ((end - begin,),), own, draw, self._own_codec)
                codes.append(code)
                memories.append(left)
            self._next.pop(part, None)
            remembered = [left for left in memories if left is not None]
            if len(remembered) == len(memories):
                self._next[part] = {name: torch.cat([left[name] for left in remembered]) for name in memory}
            return codes

    # -- the second

    def _finish(self, into: Mapping[int, Tensor], results: Mapping[int, list[Tensor]]) -> Stages[None]:
        works = {part: self.wire.all_gather(self._code_of_own_piece(part, codes)) for part, codes in results.items()}
        for part, work in works.items():
            codes = yield work
            with self.spending("decode"):
                own = self._picked(part, into[part].zero_())
                for owner, ((begin, end), code) in enumerate(zip(self._pieces(part), codes, strict=True)):
                    self._add_code(own[begin:end], code, ((end - begin,),), self._piece_draw(part, owner, owner, 2))
                if own is not into[part]:
                    self._put_back(part, own, into[part])

    def _code_of_own_piece(self, part: int, codes: Sequence[Tensor]) -> Tensor:
        """Return the code of the sum of the piece that this worker owns."""
        owner, like = self.wire.rank, self.layout.parts[part]
        begin, end = self._pieces(part)[owner]
        shapes = ((end - begin,),)
        total = torch.zeros(end - begin, dtype=like.dtype, device=like.device)
        with self.spending("decode"):
            for rank, code in enumerate(codes):
                self._add_code(total, code, shapes, self._piece_draw(part, owner, rank, 1))
        with self.spending("encode"):
            memory = {ERROR: self._owned(part)[begin:end]} if isinstance(self.codec, ErrorFeedback) else {}
            draw = self._piece_draw(part, owner, owner, 2)
            code, left = self._code_of(total, shapes, memory, draw, self._codec_of_sums)
            self._next_owned.pop(part, None)
            if left is not None and memory:
                self._next_owned[part] = left[ERROR]
            return code

    def wire_bytes(self, size: int) -> int | None:
        total = 0
        for number, part in enumerate(self.layout.parts):
            if number not in self._shapes:
                total += all_reduce_bytes(part.numel * part.dtype.itemsize, size)
                continue
            own = [self.codec.wire_bytes(((end - begin,),)) for begin, end in self._pieces(number)]
            if None in own:
                return None
            sizes = [nbytes or 0 for nbytes in own]
            total += sum(sizes) - sizes[self.wire.rank] + (size - 1) * sizes[self.wire.rank]
        return total

    # -- for sums that are formed again

    def message(self, x: Flat) -> tuple[Tensor, ...]:
        reducer = self._for_layout(x.layout)
        assert isinstance(reducer, TwoPhase)
        reducer._next_owned = {}
        if self._chosen:
            for other in self._family.values():
                assert isinstance(other, TwoPhase)
                other._chosen, other._places = {}, {}
        if isinstance(self.codec, ErrorFeedback):
            self._release_pieces()
        return super().message(x)


class OnDemand(Wrapped):
    """The reducer `coded` between calls of `code`, and dense sums before the first call, which leave its memory alone.

    All workers call `code` between the same two sums.
    """

    def __init__(self, coded: TwoPhase) -> None:
        super().__init__(coded)
        self._coded, self._dense = coded, Dense(coded.layout, coded.wire)
        self._inner: Reducer = self._dense

    def code(self, chosen: Mapping[str, Tensor] | None) -> None:
        self._inner = self._dense if chosen is None else self._coded
        self._coded.choose(dict(chosen or {}))

    @contextmanager
    def uncoded(self) -> Iterator[None]:
        before, self._inner = self._inner, self._dense
        try:
            yield
        finally:
            self._inner = before

    def measure(self, spending: Measured) -> None:
        self._coded.measure(spending)

    @property
    def state(self) -> Any:
        return self._coded.state

    def weighs(self, weight: float) -> None:
        self._coded.weighs(weight)

    def follows(self, before: Reducer) -> None:
        if isinstance(before, OnDemand):
            self._coded.follows(before._coded)
