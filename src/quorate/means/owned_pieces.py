"""`OwnedPieces`: reducers in which each worker owns one piece of all vectors, and combines these pieces into one.

A part is cut into as many pieces as there are workers, and each piece goes to the worker that owns it, while the
backward pass still computes the rest. Owners measure their pieces, and the measurements are summed. From that sum all
workers make the same decision on how to combine the vectors. Each owner then combines its pieces, and sends the result
to all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.aggregation.compiled_rows import compiled_rows
from quorate.aggregation.outcome import Outcome
from quorate.aggregation.rows import Rows
from quorate.core.codec import Draw
from quorate.core.contracts import Wire, Work, Write
from quorate.core.device_copies import widest
from quorate.core.vectors import Flat, Layout
from quorate.means.centre import reals
from quorate.means.remembering import Remembering
from quorate.wire.cut import all_reduce_bytes, piece
from quorate.wire.exchange import sum_in_order
from quorate.wire.work import Stages, Together

Made = Callable[[int, Rows, Sequence[Tensor]], None]
"""Writes the combination (c) of the rows (n, c) of a part into each of these vectors, which may be the rows."""


class OwnedPieces(Remembering):
    """A reducer that combines the vectors of all workers as `_decided` says, in place of their sum.

    Cost per worker, with P workers and n bytes: (P - 1) / P n sent in each of two exchanges, as in an all-reduce. The
    first one overlaps with backward. Between the two the sum of the measurements is sent. On one host neither is copied
    on the way: owners read the vectors of others in shared memory, and write their results there.
    """

    def __init__(self, layout: Layout, wire: Wire) -> None:
        super().__init__(layout, wire, range(len(layout.parts)))
        self._of = layout
        """The layout of the newest vector; longer than a gradient with moments or numbers."""
        self._counts = torch.ones(wire.size, dtype=torch.float64)
        """The weight of the newest vector of each worker."""
        self.newest = Outcome()
        """The outcome of the newest sum."""

    @property
    def outcome(self) -> Outcome:
        return self.newest

    @abstractmethod
    def _measured(self, rows: Mapping[int, Rows], counts: Tensor, ranks: Sequence[int], draw: Draw) -> Tensor:
        """Return the measurements of the rows of each part, in float64 on the CPU; those of pieces add up.

        Rows are divided by their weights, which `counts` has. `draw` is another one for each owner.
        """

    @abstractmethod
    def _decided(self, measured: Tensor, counts: Tensor, ranks: Sequence[int]) -> Made:
        """Return the combination of the vectors of `ranks`, whose measurements together are `measured`."""

    def _formed(self, parts: Sequence[Tensor], ranks: Sequence[int]) -> None:
        """Take the full parts of a sum that was formed again of the vectors of `ranks`, with their headers."""

    @abstractmethod
    def _draw(self) -> Draw:
        """Return the draw of the newest sum."""

    @abstractmethod
    def _measured_numbers(self, size: int) -> int:
        """Return how many numbers `_measured` gives."""

    def _room(self, part: int) -> Tensor | None:
        """Return memory into which the result of this worker's piece is written as well; None: there is none."""
        return None

    def _centre(self, part: int, here: slice) -> Tensor | None:
        """Return the centre of this slice of a part, as real numbers; None: zero."""
        return None

    def factor(self, size: int, weight: float) -> float:
        """Return the number of workers, by which each has divided its vector."""
        return float(size)

    def _numbers(self, part: int, layout: Layout) -> int:
        """Return the length of a part, without the header behind the last one."""
        return layout.parts[part].numel - (layout.header if part == len(layout.parts) - 1 else 0)

    def _pieces(self, numbers: int) -> list[tuple[int, int]]:
        size = self.wire.size
        cuts = [piece(numbers, rank, size) for rank in range(size)]
        return [(cut.start, cut.stop) for cut in cuts]

    def _own_piece(self, part: int, layout: Layout) -> slice:
        width = 2 if layout.parts[part].dtype.is_complex else 1
        return slice(*self._pieces(width * self._numbers(part, layout))[self.wire.rank])

    def _first(self, part: int, x: Tensor) -> Work[Any]:
        return self._launched(part, x)

    def start(self, x: Flat, kept: Any = None) -> Work[Flat]:
        self._of = x.layout
        work = super().start(x, kept)
        self._of = self.layout
        return work

    def abandon(self, x: Flat) -> Work[list[Any]]:
        self._of = self.layout
        return super().abandon(x)

    def _summed(self, x: Flat, results: Sequence[Any]) -> Stages[Flat]:
        yield from self._finish_as(x.layout, dict(enumerate(x.parts)), dict(enumerate(results)))
        return x

    def _finish(self, into: Mapping[int, Tensor], results: Mapping[int, Any]) -> Stages[None]:
        return self._finish_as(self.layout, into, results)

    def _launched(self, part: int, x: Tensor) -> Work[Any]:
        """Send pieces to their owners; with the last part also the weight of each worker, and its header."""
        numbers = self._numbers(part, self._of)
        own = reals(x[:numbers])
        # The numbers are changed only when all owners have sent their results, and need them no more.
        works: list[Work[Any]] = [self.wire.all_to_all_single(own)]
        if numbers < x.numel():
            header = x[numbers:].clone()
            each = torch.zeros(self.wire.size, dtype=widest(x.device), device=x.device)
            each[self.wire.rank] = reals(header)[0]
            works += [self.wire.all_reduce(each), self.wire.all_reduce(header)]
        return Together(works, lambda results: results, self.wire.clock)

    def _finish_as(self, layout: Layout, into: Mapping[int, Tensor], results: Mapping[int, Any]) -> Stages[None]:
        order, everyone = sorted(into), range(self.wire.size)
        weights = next((own[1] for own in results.values() if len(own) > 1), None)
        if weights is not None:  # else a part is summed again, without the header
            self._counts = weights.cpu()
        counts, pieces = self._counts, {part: self._own_piece(part, layout) for part in order}
        with self.spending("decode"):
            rows = {part: self._rows(part, results[part][0], counts, pieces[part], compiled_rows) for part in order}
            draw = self._draw().of(self.wire.rank)
            measured = self._measured(rows, counts, everyone, draw)
        measured = yield self.wire.all_reduce(measured)
        with self.spending("decode"):
            made = self._decided(measured, counts, everyone)
        numbers_of = {part: self._numbers(part, layout) for part in order}
        whole = {part: reals(into[part][:numbers]) for part, numbers in numbers_of.items()}
        works = {part: self.wire.all_gather_into(whole[part], self._writing(made, part, rows[part])) for part in order}
        for part, work in works.items():
            yield work
            numbers = numbers_of[part]
            if numbers < into[part].numel() and len(results[part]) > 1:
                into[part][numbers:] = results[part][2]

    def _rows(
        self, part: int, vectors: Sequence[Tensor], counts: Tensor, piece: slice, made: Callable[..., Rows]
    ) -> Rows:
        """Return the rows of a piece of a part, divided by their weights."""
        is_even = bool(((counts == 1) | (counts <= 0)).all())
        divisors = None if is_even else counts.clamp_min(torch.finfo(torch.float32).tiny)
        centre = self._centre(part, piece)
        return made(vectors, divisors, None if centre is None else centre.to(vectors[0]))

    def _writing(self, made: Made, part: int, rows: Rows) -> Write:
        def write(into: Sequence[Tensor]) -> None:
            room = self._room(part)
            with self.spending("decode"):
                made(part, rows, into if room is None else [*into, room])

        return write

    def wire_bytes(self, size: int) -> int:
        sent, rank = 0, self.wire.rank
        for number, part in enumerate(self.layout.parts):
            width = 2 if part.dtype.is_complex else 1
            pieces = self._pieces(width * self._numbers(number, self.layout))
            each = [(end - begin) * part.dtype.itemsize // width for begin, end in pieces]
            sent += sum(each) - each[rank] + (size - 1) * each[rank]
            if number == len(self.layout.parts) - 1 and self.layout.header:
                sent += all_reduce_bytes(8 * size, size) + all_reduce_bytes(
                    self.layout.header * part.dtype.itemsize, size
                )
        return sent + all_reduce_bytes(8 * self._measured_numbers(size), size)

    # -- for sums that are formed again

    def sum_of(
        self, messages: Sequence[tuple[Tensor, ...]], ranks: Sequence[int], hosts: Sequence[int], like: Flat
    ) -> Flat:
        """Return the combination of the whole vectors of `ranks`; headers are summed."""
        order = sorted(range(len(ranks)), key=lambda place: ranks[place])
        numbers = [self._numbers(part, like.layout) for part in range(len(like.parts))]
        counts = torch.ones(len(order), dtype=torch.float64)
        if like.layout.header:
            counts = torch.cat([reals(messages[place][-1][numbers[-1] :])[:1].cpu().double() for place in order])
        if len(order) == self.wire.size:
            self._counts = counts
        whole = {
            part: [reals(messages[place][part][: numbers[part]].to(into.device)) for place in order]
            for part, into in enumerate(like.parts)
        }
        sums = Flat.zeros(like.layout)
        for part, result in self._of_whole(whole, counts, sorted(ranks)):
            into = sums.parts[part]
            reals(into[: numbers[part]]).copy_(result)
            if numbers[part] < into.numel():
                tails = [messages[place][part][numbers[part] :].to(into.device) for place in order]
                into[numbers[part] :] = sum_in_order(tails, [hosts[place] for place in order])
        self._formed(sums.parts, ranks)
        return sums

    def _of_whole(
        self, vectors: Mapping[int, Sequence[Tensor]], counts: Tensor, ranks: Sequence[int]
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield the combination of each part of the whole vectors of `ranks`."""
        # Each worker calculates these by itself, with the passes of torch, which are the same everywhere.
        rows = {part: self._rows(part, own, counts, slice(0, len(own[0])), Rows) for part, own in vectors.items()}
        made = self._decided(self._measured(rows, counts, ranks, self._draw()), counts, ranks)
        for part, x in rows.items():
            combined = torch.empty(x.width, dtype=x.dtype, device=x.device)
            made(part, x, [combined])
            yield part, combined

    def part_of(self, part: int, vectors: Sequence[Tensor]) -> Tensor:
        """Return the combination of one part of the whole vectors of all workers; headers are summed."""
        numbers, everyone = self._numbers(part, self.layout), range(len(vectors))
        if numbers < len(vectors[0]):
            self._counts = torch.cat([reals(x[numbers:])[:1].cpu().double() for x in vectors])
        combined = vectors[0].clone()
        for _, result in self._of_whole({part: [reals(x[:numbers]) for x in vectors]}, self._counts, everyone):
            reals(combined[:numbers]).copy_(result)
        combined[numbers:] = sum_in_order([x[numbers:] for x in vectors], list(everyone))
        return combined
