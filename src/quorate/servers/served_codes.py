"""Codes for messages to and from servers: of gradients, and of the differences of parameters since the last read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from quorate.core.vectors import Flat
from quorate.means.edge_coding import EdgeCoding
from quorate.means.remembering import is_finite
from quorate.servers.shard import Cut


class PushCodes:
    """Encodes a worker's gradients, part by part. The remainder of a biased code is added to the next gradient.

    Cost: where codes are biased, a vector per worker; encoding, and decoding what was encoded.
    """

    def __init__(self, coding: EdgeCoding, rank: int, *, feeds_back: bool) -> None:
        self._coding, self._rank, self._feeds_back = coding, rank, feeds_back
        self._remainders: dict[int, Flat] = {}

    def code(self, part: int, cut: Cut, gradient: Flat, number: int) -> list[Tensor]:
        """Return the encoded gradient, one tensor for each piece of the cut; `number` seeds the randomness."""
        x = Flat(cut.of(gradient), cut.layout)
        remainder = self._remainders.get(part)
        wanted = x if remainder is None else x + remainder
        tensors = self._coding.encode(wanted, number, self._rank)
        if self._feeds_back and all(map(is_finite, wanted.parts)):
            self._remainders[part] = wanted - self._coding.decode(tensors, cut.layout, number, self._rank)
        return tensors

    def forget(self) -> None:
        """Forget all remainders, as other parameters are trained than before."""
        self._remainders.clear()

    def left_out(self, cuts: Sequence[Cut], blank: Callable[[], Flat]) -> Flat | None:
        """Return the remainders of all parts as one vector; None where there are none."""
        if not self._remainders:
            return None
        vector = blank()
        for part, remainder in self._remainders.items():
            for target, x in zip(cuts[part].of(vector), remainder.parts, strict=True):
                target.copy_(x)
        return vector

    def take_back(self, left_out: Flat | None, cuts: Sequence[Cut]) -> None:
        """Continue with the vector that `left_out` returned, perhaps for other servers."""
        self.forget()
        if left_out is not None:
            self._remainders = {
                part: Flat([x.clone() for x in cut.of(left_out)], cut.layout) for part, cut in enumerate(cuts)
            }


class PullCodes:
    """Encodes reads of one part as differences from the copy that the reader has, which both sides know.

    The numbers that a code leaves out are in the next difference.

    Cost: a copy of the part for each worker on the server, and one on the worker.
    """

    def __init__(self, coding: EdgeCoding, cut: Cut, begin: Sequence[Tensor]) -> None:
        """`begin` holds the numbers that every worker has at the start of the era."""
        self._coding, self._cut, self._begin = coding, cut, Flat(list(begin), cut.layout)
        self._copies: dict[int, Flat] = {}

    def begin_at(self, reader: int, numbers: Sequence[Tensor]) -> None:
        """`reader` has received these numbers uncoded."""
        self._copies[reader] = Flat(list(numbers), self._cut.layout)

    def code(self, reader: int, numbers: Sequence[Tensor], version: int) -> tuple[list[Tensor], list[Tensor]]:
        """Return the tensors to send to `reader` in place of `numbers`, and the copy that it has afterwards."""
        difference = Flat(list(numbers), self._cut.layout) - self._copies.get(reader, self._begin)
        tensors = self._coding.encode(difference, version, reader)
        return tensors, self.read(reader, tensors, version)

    def read(self, reader: int, tensors: Sequence[Tensor], version: int) -> list[Tensor]:
        """Return the copy that `reader` has after receiving these tensors."""
        difference = self._coding.decode(tensors, self._cut.layout, version, reader)
        self._copies[reader] = self._copies.get(reader, self._begin) + difference
        return list(self._copies[reader].parts)
