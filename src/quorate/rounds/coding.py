"""The codec of a worker in rounds, and its error; and messages of vectors that are mostly zeros.

The error is no contribution that waits: it is added to the next one that is sent. A round without this worker gives
back the contributions and the error as they were; the error to the bit, unless something was sent since. So what
rounds have taken, what waits, and the error add up to what was produced. In a pause contributions are sent unencoded,
with the error added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quorate.core.codec import Codec, Draw, shapes_in
from quorate.core.vectors import Flat, Layout, Part, bare_layout, carry_coded, digest_of, segments_by_part
from quorate.means.remembering import is_finite


class Codes:
    """The codes of `codec`, which keeps no state; all workers share the `seed`."""

    def __init__(self, codec: Codec, seed: int) -> None:
        self._codec, self._seed = codec, seed
        self._known: dict[str, Layout | None] = {}

    def layout(self, of: Layout) -> Layout | None:
        """Return the layout of the code of a vector, part by part; None where it depends on the numbers."""
        if digest_of(of) not in self._known:
            parts = list(of.parts)
            for number, shapes in shapes_in(of).items():
                part = self._code_of(parts[number], shapes)
                if part is None:
                    parts = []
                    break
                parts[number] = part
            self._known[digest_of(of)] = Layout((), tuple(parts), 0) if parts else None
        return self._known[digest_of(of)]

    def _code_of(self, part: Part, shapes: tuple[tuple[int, ...], ...]) -> Part | None:
        nbytes = self._codec.wire_bytes(shapes)
        if nbytes is None:
            return None
        if not self._codec.is_linear:
            return Part(nbytes, torch.uint8, part.device)
        code, _ = self._codec.encode(torch.zeros(part.numel, dtype=part.dtype, device=part.device), shapes, {}, Draw())
        return replace(part, numel=code.numel(), dtype=code.dtype, coded=False)

    def draw(self, number: int, rank: int, part: int) -> Draw:
        """Return the random draws for the contribution of `rank` to round `number`."""
        return Draw(self._seed, number, rank, part)

    def decoded(self, code: Flat, of: Layout, number: int, rank: int, blank: Callable[[Layout], Flat]) -> Flat:
        """Return the vector, laid out as `of`, that `rank` has sent to round `number` as `code`."""
        vector, shapes = blank(of), shapes_in(of)
        for part, x in enumerate(code.parts):
            if part in shapes:
                x = self._codec.decode(x, shapes[part], self.draw(number, rank, part))
            vector.parts[part].copy_(x)
        return vector


@dataclass(frozen=True, eq=False)
class Encoded:
    """A contribution before and after encoding. Cost: up to two vectors, while it is kept."""

    wanted: Flat
    vector: Flat  # the decoded vector, which rounds add up
    code: Flat | None  # the code; None where the vector is not encoded, or codes differ in length
    before: Flat | None
    after: Flat | None


Units = Callable[[Flat], Sequence[float]]
"""By tensor, the size of a vector in units of a gradient."""


class Coding:
    """The codec of worker `rank`, which keeps no state itself. Not locked: see `pending`."""

    def __init__(
        self, codec: Codec, layout: Layout, seed: int, rank: int, *, feeds_back: bool, units: Units | None = None
    ) -> None:
        """`feeds_back`: whether the error is kept; `units` of vectors, in which settings are meant."""
        self._codec, self._seed, self._rank, self._is_kept = codec, seed, rank, feeds_back
        self.codes = Codes(codec, seed)
        self._units = units if codec.has_unit else None
        self.error: Flat | None = None  # the error; None where it is zero, or not kept
        self.lay_out(layout)

    @property
    def votes(self) -> bool:
        return self._codec.votes

    def lay_out(self, layout: Layout) -> None:
        """Lay out vectors by `layout` from now on; the error of tensors that stay is kept."""
        old, self.error = self.error, None
        self.layout, self._shapes = layout, shapes_in(layout)
        if old is not None:
            self.error = Flat.zeros(bare_layout(layout))
            carry_coded(old, self.error)

    def of(self, layout: Layout) -> Coding:
        own = self._codec, layout, self._seed, self._rank
        return Coding(*own, feeds_back=self._is_kept, units=self._units)

    def encode(self, vector: Flat, number: int, blank: Callable[[Layout], Flat]) -> Encoded:
        """Encode `vector` for round `number`, in new memory; the difference becomes the error. A vector that is not
        finite is sent as it is, without a code. Codes of different lengths are not kept."""
        if not all(is_finite(vector.parts[part]) for part in self._shapes):
            return Encoded(vector, vector, None, self.error, self.error)
        codes, laid_out = list(vector.parts), self.codes.layout(vector.layout)
        decoded = blank(vector.layout)
        left = Flat.zeros(bare_layout(vector.layout)) if self._is_kept else None
        units = None if self._units is None else self._units(vector)
        laid_out = None if units is not None else laid_out
        for part, x in enumerate(vector.parts):
            if part not in self._shapes:
                decoded.parts[part].copy_(x)
                continue
            shapes, draw = self._shapes[part], self.codes.draw(number, self._rank, part)
            wanted = x if self.error is None else x + self.error.parts[part]
            if units is not None:
                self._write_in_units(wanted, decoded, part, units, draw)
            else:
                codes[part], _ = self._codec.encode(wanted, shapes, {}, draw)
                decoded.parts[part].copy_(self._codec.decode(codes[part], shapes, draw))
            if left is not None:
                torch.sub(wanted, decoded.parts[part], out=left.parts[part])
        before, self.error = self.error, left
        return Encoded(vector, decoded, None if laid_out is None else Flat(codes, laid_out), before, left)

    def _write_in_units(self, wanted: Tensor, into: Flat, part: int, units: Sequence[float], draw: Draw) -> None:
        for index in segments_by_part(into.layout)[part]:
            segment, codec = into.layout.segments[index], self._codec.rescaled(units[index])
            own, shapes = slice(segment.offset, segment.offset + segment.numel), (segment.shape,)
            code, _ = codec.encode(wanted[own], shapes, {}, draw)
            into.parts[part][own].copy_(codec.decode(code, shapes, draw))

    def whole(self, vector: Flat, blank: Callable[[Layout], Flat]) -> Encoded:
        """Return `vector` with the error added, unencoded; the error is zero then."""
        if self.error is None:
            return Encoded(vector, vector, None, None, None)
        total = blank(vector.layout)
        for part, x in enumerate(vector.parts):
            total.parts[part].copy_(x)
            if part in self._shapes:
                total.parts[part].add_(self.error.parts[part])
        before, self.error = self.error, None
        return Encoded(vector, total, None, before, None)

    def undone(self, encoded: Encoded, error: Flat | None) -> Flat | None:
        """Return what `error` would be without this contribution."""
        if encoded.vector is encoded.wanted or not self._is_kept:
            return error
        if error is encoded.after:
            return encoded.before
        total = Flat.zeros(bare_layout(encoded.wanted.layout)) if error is None else error.clone()
        for part in self._shapes:
            total.parts[part].add_(encoded.vector.parts[part]).sub_(encoded.wanted.parts[part])
        return total


_FEWEST = 1024


def sparse_written(vector: Flat) -> tuple[tuple[Tensor, ...], list[bool]]:
    """Return the tensors of a message between hosts, and which parts are places (int32) and numbers: the shorter form.

    Sparse codecs leave mostly zeros in a contribution, and so in sums of few of them. The form is exact to the bit.
    """
    tensors, are_sparse = list[Tensor](), list[bool]()
    for part in vector.parts:
        size = part.element_size()
        is_sparse = part.numel() >= _FEWEST and int(part.count_nonzero()) * (4 + size) < part.numel() * size
        are_sparse.append(is_sparse)
        if is_sparse:
            where = part.nonzero().view(-1)
            tensors += [where.to(torch.int32), part[where]]
        else:
            tensors.append(part)
    return tuple(tensors), are_sparse


def sparse_read(
    tensors: Sequence[Tensor], are_sparse: Sequence[bool], layout: Layout, blank: Callable[[Layout], Flat]
) -> Flat:
    """Return the vector that `sparse_written` has made these tensors of."""
    into, left = blank(layout), iter(tensors)
    for part, is_sparse in zip(into.parts, are_sparse, strict=True):
        if is_sparse:
            where = next(left).long()
            part.zero_()[where] = next(left)
        else:
            part.copy_(next(left))
    return into
