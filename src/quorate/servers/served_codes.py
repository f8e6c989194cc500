"""What goes to servers and comes from them, written small: gradients, and how far parameters have gone since."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from quorate.core.vectors import Flat
from quorate.means.edge_coding import EdgeCoding
from quorate.means.remembering import is_finite
from quorate.servers.shard import Cut


class PushCodes:
    """A worker's gradients, in the parts that servers have. What a code leaves out is added to the next gradient.

    Cost: where codes are biased, a vector per worker; encoding, and decoding what was encoded.
    """

    def __init__(self, coding: EdgeCoding, rank: int, *, feeds_back: bool) -> None:
        self._coding, self._rank, self._feeds_back = coding, rank, feeds_back
        self._left: dict[int, Flat] = {}
        """By part."""

    def code(self, part: int, cut: Cut, gradient: Flat, number: int) -> list[Tensor]:
        """What is sent, one tensor for each piece of the cut; `number` is what randomness is drawn for."""
        x = Flat(cut.of(gradient), cut.layout)
        left = self._left.get(part)
        wanted = x if left is None else x + left
        tensors = self._coding.encode(wanted, number, self._rank)
        if self._feeds_back and all(map(is_finite, wanted.parts)):
            self._left[part] = wanted - self._coding.decode(tensors, cut.layout, number, self._rank)
        return tensors

    def forget(self) -> None:
        """Other parameters are trained than before."""
        self._left.clear()

    def left_out(self, cuts: Sequence[Cut], blank: Callable[[], Flat]) -> Flat | None:
        """All that is to be added to the next gradients, as one vector; None where nothing is."""
        if not self._left:
            return None
        found = blank()
        for part, left in self._left.items():
            for there, x in zip(cuts[part].of(found), left.parts, strict=True):
                there.copy_(x)
        return found

    def take_back(self, left_out: Flat | None, cuts: Sequence[Cut]) -> None:
        """Go on with what `left_out` gave, perhaps for other servers."""
        self.forget()
        if left_out is not None:
            self._left = {
                part: Flat([x.clone() for x in cut.of(left_out)], cut.layout) for part, cut in enumerate(cuts)
            }


class PullCodes:
    """What a worker has of one part, as both know it: a read brings how far the part has gone from there, so
    that what a code leaves out is in the next one.

    Cost: a copy of the part for each worker on the server, and one on the worker.
    """

    def __init__(self, coding: EdgeCoding, cut: Cut, begin: Sequence[Tensor]) -> None:
        """`begin` is what everyone has as all set out."""
        self._coding, self._cut, self._begin = coding, cut, Flat(list(begin), cut.layout)
        self._has: dict[int, Flat] = {}

    def begin_at(self, reader: int, numbers: Sequence[Tensor]) -> None:
        """`reader` has got these, whole."""
        self._has[reader] = Flat(list(numbers), self._cut.layout)

    def code(self, reader: int, numbers: Sequence[Tensor], version: int) -> tuple[list[Tensor], list[Tensor]]:
        """What is sent to `reader` in place of `numbers`, and what it has then."""
        way = Flat(list(numbers), self._cut.layout) - self._has.get(reader, self._begin)
        tensors = self._coding.encode(way, version, reader)
        return tensors, self.read(reader, tensors, version)

    def read(self, reader: int, tensors: Sequence[Tensor], version: int) -> list[Tensor]:
        """What `reader` has when it has got these."""
        way = self._coding.decode(tensors, self._cut.layout, version, reader)
        self._has[reader] = self._has.get(reader, self._begin) + way
        return list(self._has[reader].parts)
