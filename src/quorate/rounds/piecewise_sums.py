"""Sums of large vectors on one host, by pieces: the leader adds, and so do workers of its host that wait for the round.

The vectors and the sum lie in memory of the host. Each worker adds a piece of all vectors in order of rank, and then
writes it to the sum, so that pieces change no bit. In a table that they share they mark the pieces that are begun and
done. Nobody waits: when no piece is left to begin, the leader adds those that are begun and not done again, of workers
that are late, stopped or dead. Two workers may write the same piece: the bytes are equal.

A worker may be stopped anywhere, and continue when the vectors are others. So it looks, between the last number that it
reads and the first that it writes, whether the sum is still open: then it has read what it should. It writes to nothing
but this sum, whenever it does: the result of the round, which the leader sends it next, keeps that memory.

Cost: one header to each worker that adds; each number is read once, and written once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.fields import Fields, Header
from quorate.core.resources import usable_cores
from quorate.core.vectors import Flat, Layout, nbytes_of
from quorate.rounds.gathering import sum_of
from quorate.rounds.holdings import Send

LEAST_BYTES = 1 << 26
"""The bytes of all vectors from which pieces save more time than the messages take."""
PIECE = 1 << 18
"""Numbers that are added at once; the sums of so many stay in a core's cache."""
_MOST_PIECES, _MOST_LOANS = 1 << 12, 1 << 11
"""The most pieces that a table has, and the most vectors in all parts that a message names."""
_DTYPES = {torch.float32: "float32", torch.float64: "float64"}

Numbers = NDArray[Any]


def threads_for(wire: Wire) -> int:
    """Return the cores that this process may use, divided among the workers of its host; at least 1."""
    host = wire.host_of(wire.rank)
    near = sum(wire.host_of(rank) == host for rank in {wire.rank, *range(wire.size)})
    return max(1, usable_cores() // near)


@dataclass(frozen=True, slots=True)
class AddPieces(Fields):
    """The message of the leader to a worker that may add pieces of a sum. Memory is lent: see `Wire.lend`."""

    kind: str = field(init=False, default="add")
    number: int  # of the sum, among those of this leader
    table: Header
    parts: Sequence[tuple[str, Sequence[Header]]]  # of each part the dtype, the vectors in order, and the sum
    place: int  # of this worker among `of`, each of which begins at another piece
    of: int


class _Sum:
    """One sum. `parts`: the arrays of each, in order, then that of the sum; the `table` is that of the leader."""

    def __init__(self, number: int, table: NDArray[np.int64], parts: Sequence[Sequence[Numbers]]) -> None:
        self._number, self._open = number, table[:1]
        self._begun, self._done = table[1:].reshape(2, _MOST_PIECES)
        numel = sum(len(arrays[-1]) for arrays in parts)
        self._step = PIECE * max(1, -(-numel // (PIECE * (_MOST_PIECES - len(parts)))))
        self._pieces = [(arrays, begin) for arrays in parts for begin in range(0, len(arrays[-1]), self._step)]

    def open(self) -> None:
        self._open[0] = self._number

    def close(self) -> None:
        """Let nobody write numbers that it has not read by now: the vectors may change."""
        self._open[0] = 0

    @property
    def _is_open(self) -> bool:
        return bool(self._open[0] == self._number)

    def add(self, share: float) -> None:
        """Add the pieces that nobody has begun, in a circle that begins after this `share` of them."""
        count, scratch = len(self._pieces), _scratch()
        for step in range(count):
            piece = (int(share * count) + step) % count
            if not self._is_open:
                return
            if self._number not in (self._begun[piece], self._done[piece]):
                self._begun[piece] = self._number
                self._add(piece, scratch)

    def add_rest(self) -> None:
        """Add the pieces that are not done."""
        scratch = _scratch()
        for piece in range(len(self._pieces)):
            if self._done[piece] != self._number:
                self._add(piece, scratch)

    def _add(self, piece: int, scratch: Numbers) -> None:
        arrays, first = self._pieces[piece]
        end = min(first + self._step, len(arrays[-1]))
        for begin in range(first, end, PIECE):
            *vectors, total = [x[begin : min(begin + PIECE, end)] for x in arrays]
            numbers = scratch.view(total.dtype)[: len(total)]
            with np.errstate(all="ignore"):
                np.add(vectors[0], vectors[1], out=numbers)
                for x in vectors[2:]:
                    np.add(numbers, x, out=numbers)
            if not self._is_open:
                return
            total[:] = numbers
        self._done[piece] = self._number


def _scratch() -> Numbers:
    """Return memory for the numbers of a piece, of which only so much as is used is there."""
    return np.empty(8 * PIECE, np.uint8)


class PiecewiseSums:
    """The sums of the rounds that one worker leads, and its part in those of others. `send` sends headers; `blank`
    makes vectors to form sums in; `threads` of this process add (0: see `threads_for`)."""

    def __init__(self, wire: Wire, send: Send, blank: Callable[[Layout], Flat], threads: int) -> None:
        self._wire, self._send, self._blank, self._threads = wire, send, blank, threads
        self._table: Tensor | None = None
        self._number = 0
        self._pool: ThreadPoolExecutor | None = None

    def add_with(self, waiting: Callable[[], Sequence[int]], vectors: Sequence[Flat]) -> Flat | None:
        """Return the sum in order, in new memory. The workers of `waiting()` may add: each gets the result next."""
        is_small = len(vectors) < 2 or sum(map(nbytes_of, vectors)) < LEAST_BYTES
        if is_small or len(vectors) * len(vectors[0].parts) > _MOST_LOANS or (table := self._lent_table()) is None:
            return sum_of(vectors, self._blank)
        total = self._blank(vectors[0].layout)
        pieces, lent, alone = list[list[Numbers]](), list[tuple[str, Sequence[Header]]](), list[list[Tensor]]()
        for column in zip(*(x.parts for x in (*vectors, total)), strict=True):
            loans: list[Header] = [
                loan for x in column if x.dtype in _DTYPES and (loan := self._wire.lend(x)) is not None
            ]
            if len(loans) == len(column):
                pieces.append([x.numpy() for x in column])
                lent.append((_DTYPES[column[0].dtype], loans))
            else:
                alone.append(list(column))
        host = self._wire.host_of(self._wire.rank)
        near = [rank for rank in waiting() if self._wire.host_of(rank) == host] if pieces else []
        assert self._table is not None
        self._number += 1
        own = _Sum(self._number, self._table.numpy(), pieces)
        own.open()
        try:
            for place, rank in enumerate(near, 1):
                self._send(rank, AddPieces(self._number, table, lent, place, len(near) + 1).header(), None)
            self._add(own, 0, len(near) + 1)
            own.add_rest()
        finally:
            own.close()
        for *columns, into in alone:
            torch.add(columns[0], columns[1], out=into)
            for x in columns[2:]:
                into.add_(x)
        return total

    def help(self, header: Header) -> None:
        """Add pieces of another worker's sum, as far as they are left and memory is within reach."""
        message = AddPieces.read(header)
        try:
            table = self._wire.borrow(message.table).numpy().view(np.int64)
            pieces = [[self._wire.borrow(x).numpy().view(dtype) for x in loans] for dtype, loans in message.parts]
        except ConfigurationError:
            return
        self._add(_Sum(message.number, table, pieces), message.place, message.of)

    def _add(self, piecewise: _Sum, place: int, of: int) -> None:
        """Add in all threads of this process."""
        threads = self._threads = self._threads or threads_for(self._wire)
        if self._pool is None and threads > 1:
            self._pool = ThreadPoolExecutor(threads - 1, "quorate-sums-of-rounds")
        shares = [(place + thread / threads) / of for thread in range(threads)]
        others = [] if self._pool is None else [self._pool.submit(piecewise.add, share) for share in shares[1:]]
        piecewise.add(shares[0])
        for other in others:
            other.result()

    def _lent_table(self) -> Header | None:
        if self._table is None:
            self._table = self._wire.empty(1 + 2 * _MOST_PIECES, torch.int64).zero_()
        return self._wire.lend(self._table)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
