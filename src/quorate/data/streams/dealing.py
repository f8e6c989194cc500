"""The batches of a stream that several workers share: pure functions of its items and of earlier divisions.

Every item of the remaining stream has a place, 0, 1, 2, … Among `lanes` workers with equal shares, item i is item
i // lanes of lane i modulo `lanes`. Where workers claim batches, there is one lane. Consecutive items of a lane
are its batches 0, 1, 2, …
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.data.assignment import DYNAMIC
from quorate.data.position import Dealt
from quorate.data.streams.reading import PartsReading, Place

FIRST = 3
"""Items at the beginning that workers compare."""


@dataclass(frozen=True, kw_only=True)
class DealtPlace:
    """A place in a stream that several workers share."""

    at: Place
    counts: tuple[int, ...]
    """Items before it: of the stream, and of its remainder after each earlier division."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Items of one batch, and the place after the last of them."""

    items: list[Any] = field(repr=False)
    after: DealtPlace | Place | None


class Lanes:
    """The lane and the number of a batch, for each place of a division."""

    def __init__(self, lanes: int, batch_size: int) -> None:
        self.lanes, self.batch_size = lanes, batch_size

    def batch_of(self, place: int) -> tuple[int, int]:
        """Return (lane, number of its batch) of the item at `place`."""
        return place % self.lanes, place // self.lanes // self.batch_size


class _Past:
    """An earlier division, as a filter of places that ascend."""

    def __init__(self, dealt: Dealt) -> None:
        self._lanes = Lanes(1 if dealt.share == DYNAMIC else dealt.size, dealt.batch_size)
        self._consumed = dealt.consumed
        self._begins = [[begin for begin, _ in spans] for spans in dealt.consumed]

    def has(self, place: int) -> bool:
        """Return whether a worker has consumed the item at `place`."""
        lane, number = self._lanes.batch_of(place)
        if lane >= len(self._consumed):
            return False
        index = bisect_right(self._begins[lane], number) - 1
        return index >= 0 and number < self._consumed[lane][index][1]


class Dealer:
    """Reads a stream, and returns batches by lane and number.

    `reopen(place)` returns a reading from a place on, or from the beginning. Requests of one lane may be in any order
    if `keeps_all`: then batches of other lanes, which are completed on the way, are kept until they are requested.
    Otherwise they are dropped, and a request for an earlier batch reads from the beginning again. With `is_equal` all
    lanes have equally many batches: those without an item in the last one get a copy of the last item.
    """

    def __init__(
        self,
        reopen: Callable[[Place | None], PartsReading],
        past: tuple[Dealt, ...],
        begin: DealtPlace | None,
        lanes: Lanes,
        *,
        keeps_all: bool,
        drop_last: bool,
        is_equal: bool,
        name: str = "the stream",
        is_whole: bool = False,
    ) -> None:
        """`is_whole`: the stream is read from its beginning, so that no item at all is an error."""
        self._name, self._is_whole = name, is_whole and begin is None
        self._reopen, self._past, self._begin, self._lanes = reopen, [*map(_Past, past)], begin, lanes
        self._keeps_all, self._drop_last, self._is_equal = keeps_all, drop_last, is_equal
        self.first: list[Any] = []
        """The first items, where the stream is read from its beginning."""
        self._restart()

    def _restart(self) -> None:
        self._reading = self._reopen(None if self._begin is None else self._begin.at)
        counts = [0] * (len(self._past) + 1) if self._begin is None else list(self._begin.counts)
        self._counts = counts
        self._open: dict[tuple[int, int], list[Any]] = {}
        self._ready: dict[tuple[int, int], Batch] = {}
        self._done: dict[int, int] = {}
        self.has_ended = False
        self._last: tuple[Any] | None = None
        self._wanted: tuple[int, int] | None = None

    def batch(self, lane: int, number: int) -> Batch | None:
        """Return that batch; None where the stream has ended before."""
        key = (lane, number)
        if not self._keeps_all:
            is_other = self._wanted is not None and self._wanted[0] != lane
            if is_other or number < self._done.get(lane, 0):
                self._restart()
            self._wanted = key
        least = self._lanes.lanes * self._lanes.batch_size * (number + 1) if self._is_equal and self._drop_last else 0
        while (key not in self._ready or self._counts[-1] < least) and not self.has_ended:
            self._read_one()
        if self._counts[-1] < least:
            return None
        batch = self._ready.pop(key, None)
        self._done[lane] = max(self._done.get(lane, 0), number + 1)
        return batch

    @property
    def count(self) -> int:
        """Batches of the lane with the most; once the stream has ended."""
        return -(-self._counts[-1] // self._lanes.lanes // self._lanes.batch_size)

    def _read_one(self) -> None:
        try:
            item = next(self._reading)
        except StopIteration:
            self._end()
            return
        if self._is_whole and self._counts[0] < FIRST and len(self.first) == self._counts[0]:
            self.first.append(item)
        for level, past in enumerate(self._past):
            place = self._counts[level]
            self._counts[level] += 1
            if past.has(place):
                return
        place = self._counts[-1]
        self._counts[-1] += 1
        key = self._lanes.batch_of(place)
        self._last = (item,)
        if self._is_wanted(key):
            items = self._open.setdefault(key, [])
            items.append(item)
            if len(items) == self._lanes.batch_size:
                self._finish(key)

    def _is_wanted(self, key: tuple[int, int]) -> bool:
        if self._keeps_all or self._wanted is None:
            return True
        return key[0] == self._wanted[0] and key[1] >= self._wanted[1]

    def _finish(self, key: tuple[int, int]) -> None:
        after = DealtPlace(at=self._reading.place, counts=tuple(self._counts))
        self._ready[key] = Batch(items=self._open.pop(key), after=after)

    def _end(self) -> None:
        self.has_ended = True
        if self._is_whole and not self._counts[0]:
            raise ConfigurationError(
                f"{self._name} has no example; iter() of it must begin again in each epoch, and a generator can be "
                "read only once"
            )
        if self._is_equal and self._last is not None:
            self._fill()
        for key in sorted(self._open):
            if not self._drop_last:
                self._finish(key)
        self._open.clear()

    def _fill(self) -> None:
        """Give each lane an item in the last batch of any."""
        assert self._last is not None, "a stream that is filled has an item"
        (item,), lanes = self._last, self._lanes
        newest = (self._counts[-1] - 1) // lanes.lanes // lanes.batch_size
        first = newest * lanes.batch_size * lanes.lanes
        for lane in range(lanes.lanes):
            if first + lane >= self._counts[-1] and self._is_wanted((lane, newest)):
                self._open[lane, newest] = [item]


def batches_of(reading: PartsReading, size: int, *, drop_last: bool) -> Iterator[Batch]:
    """Yield the batches of the items of parts that only one worker reads, each with the place after it."""
    items: list[Any] = []
    for item in reading:
        items.append(item)
        if len(items) == size:
            yield Batch(items=items, after=reading.place)
            items = []
    if items and not drop_last:
        yield Batch(items=items, after=reading.place)
