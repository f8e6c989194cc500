"""What a worker's codec makes of what it gives to rounds, and what it leaves out.

The error is no contribution that waits: it is added to the next one that is given. A round that passes by without this
worker gives back the contributions and the error as they were; the error to the bit, unless something was given since.
So what rounds have taken, what waits, and the error add up to what was produced. When all settle, what is given is
whole, error and all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quorate.core.codec import Codec, Draw, shapes_in
from quorate.core.vectors import Flat, Layout, bare_layout, segments_by_part
from quorate.means.remembering import is_finite
from quorate.rounds.codes import Codes


@dataclass(frozen=True, eq=False)
class Given:
    """What was given to a round, and what was left out before and after. Cost: up to two vectors, while it is kept."""

    wanted: Flat
    """What was to be given."""
    vector: Flat
    """What is, in its place."""
    code: Flat | None
    """That as the codec has written it; None where the vector is whole, or codes differ in length."""
    before: Flat | None
    after: Flat | None


Units = Callable[[Flat], Sequence[float]]
"""By tensor, how many times as large as in its own unit (that of a gradient) a vector is that is to be given."""


class Coding:
    """That of worker `rank`; `codec` has no memories. Not locked: see `pending`."""

    def __init__(
        self, codec: Codec, layout: Layout, seed: int, rank: int, *, feeds_back: bool, units: Units | None = None
    ) -> None:
        """`feeds_back`: whether what is left out is remembered; `units` of vectors, in which settings are meant."""
        self._codec, self._seed, self._rank, self._is_kept = codec, seed, rank, feeds_back
        self.codes = Codes(codec, seed)
        self._units = units if codec.has_unit else None
        self.error: Flat | None = None
        """What was left out; None where that is nothing, or not remembered."""
        self.lay_out(layout)

    @property
    def votes(self) -> bool:
        """Whether the sum of codes is a vote, see `Codec.votes`."""
        return self._codec.votes

    def lay_out(self, layout: Layout) -> None:
        """Of vectors, from here on; the error of tensors that stay goes on."""
        old, self.error = self.error, None
        self.layout, self._shapes = layout, shapes_in(layout)
        if old is not None:
            there = {segment.name: index for index, segment in enumerate(old.layout.segments)}
            self.error = Flat.zeros(bare_layout(layout))
            for index, segment in enumerate(layout.segments):
                if segment.name in there and layout.parts[segment.part].coded:
                    self.error.segment(index).copy_(old.segment(there[segment.name]))

    def of(self, layout: Layout) -> Coding:
        """Another one like it, of vectors laid out so, of which nothing was left out yet."""
        own = self._codec, layout, self._seed, self._rank
        return Coding(*own, feeds_back=self._is_kept, units=self._units)

    def given(self, vector: Flat, number: int, blank: Callable[[Layout], Flat]) -> Given:
        """What is given to round `number` in place of `vector`, in new memory; the rest is the error.

        Where a number is not finite, the vector itself, and no code; nor where codes differ in length.
        """
        if not all(is_finite(vector.parts[part]) for part in self._shapes):
            return Given(vector, vector, None, self.error, self.error)
        codes, laid_out = list(vector.parts), self.codes.layout(vector.layout)
        found = blank(vector.layout)
        left = Flat.zeros(bare_layout(vector.layout)) if self._is_kept else None
        units = None if self._units is None else self._units(vector)
        laid_out = None if units is not None else laid_out
        for part, x in enumerate(vector.parts):
            if part not in self._shapes:
                found.parts[part].copy_(x)
                continue
            shapes, draw = self._shapes[part], self.codes.draw(number, self._rank, part)
            wanted = x if self.error is None else x + self.error.parts[part]
            if units is not None:
                self._write_in_units(wanted, found, part, units, draw)
            else:
                codes[part], _ = self._codec.encode(wanted, shapes, {}, draw)
                found.parts[part].copy_(self._codec.decode(codes[part], shapes, draw))
            if left is not None:
                torch.sub(wanted, found.parts[part], out=left.parts[part])
        before, self.error = self.error, left
        return Given(vector, found, None if laid_out is None else Flat(codes, laid_out), before, left)

    def _write_in_units(self, wanted: Tensor, into: Flat, part: int, units: Sequence[float], draw: Draw) -> None:
        """Write into a part of `into` what the codec makes of each tensor of it, its settings in the tensor's unit."""
        for index in segments_by_part(into.layout)[part]:
            segment, codec = into.layout.segments[index], self._codec.rescaled(units[index])
            own, shapes = slice(segment.offset, segment.offset + segment.numel), (segment.shape,)
            code, _ = codec.encode(wanted[own], shapes, {}, draw)
            into.parts[part][own].copy_(codec.decode(code, shapes, draw))

    def whole(self, vector: Flat, blank: Callable[[Layout], Flat]) -> Given:
        """`vector`, and all that was left out, in its place."""
        if self.error is None:
            return Given(vector, vector, None, None, None)
        found = blank(vector.layout)
        for part, x in enumerate(vector.parts):
            found.parts[part].copy_(x)
            if part in self._shapes:
                found.parts[part].add_(self.error.parts[part])
        before, self.error = self.error, None
        return Given(vector, found, None, before, None)

    def undone(self, given: Given, error: Flat | None) -> Flat | None:
        """What the `error` would be had this not been given: what was wanted waits again."""
        if given.vector is given.wanted or not self._is_kept:
            return error
        if error is given.after:
            return given.before
        found = Flat.zeros(bare_layout(given.wanted.layout)) if error is None else error.clone()
        for part in self._shapes:
            found.parts[part].add_(given.vector.parts[part]).sub_(given.wanted.parts[part])
        return found
