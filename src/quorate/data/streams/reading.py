"""Parts of a stream, read from a place on: by the stream's own state, or by reading past the items before it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell

FINISHED = -1
"""The items of a part that has been read to its end."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A place in one part of a stream."""

    items: int = 0
    """Items before it, in the order in which they are returned; `FINISHED` at the end."""
    restored: int = 0
    """Items that a stream in `state` has read: at most `items`."""
    state: Any = None
    """The state of the stream, or of its iterator, under "stream" or "iterator"; None where it has none."""

    @property
    def is_finished(self) -> bool:
        """Whether the part has been read to its end."""
        return self.items == FINISHED


BEGIN, END = Mark(), Mark(items=FINISHED)
"""The places before the first item of a part and after its last."""


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """A shuffle of blocks of `size` consecutive items, drawn from the seed, the epoch, the part and the block's number.

    So the order follows from these alone. A place in it is a state of the stream before a block, and a number of items.
    """

    size: int
    seed: int

    def order(self, epoch: int, part: int, block: int, count: int) -> list[int]:
        """Return the order of the `count` items of a block."""
        order: list[int] = np.random.default_rng([self.seed % 2**64, epoch, part, block]).permutation(count).tolist()
        return order


class PartReading:
    """An iterator over one part of a stream, from `mark` on; `mark` is its place at any time.

    The state of a stream is that of its iterator, if this has `state_dict()` and `load_state_dict()`, and else that of
    the stream (torchdata's protocol). Without either, the items before the mark are read again, and a line says how
    many. Raises `ConfigurationError` for a stream that ends before the mark.
    """

    def __init__(
        self,
        stream: Any,
        part: int,
        epoch: int,
        mark: Mark,
        mixing: Mixing | None,
        *,
        knows_place: bool,
        tells: bool,
    ) -> None:
        """`knows_place` is False where the state of the stream lacks something."""
        self._stream, self._part, self._epoch, self._mixing, self._tells = stream, part, epoch, mixing, tells
        self._knows_place = knows_place
        self._items = mark.items
        set_epoch = getattr(stream, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
        self._iterator = self._opened(mark)
        self._block: list[Any] = []  # in the order of return, reversed
        self._at_block = mark.restored, mark.state
        begin, known = time.perf_counter(), mark.items - mark.restored
        self._read = mark.restored
        if mixing is None:
            self._skip(known)
        else:
            for _ in range(known):
                self._next_item()
        self._say(known if mixing is None or mark.state is None else 0, time.perf_counter() - begin)

    def _opened(self, mark: Mark) -> Iterator[Any]:
        if mark.state is not None and "stream" in mark.state:
            self._stream.load_state_dict(copy.deepcopy(mark.state["stream"]))
        iterator: Any = iter(self._stream)
        if mark.state is not None and "iterator" in mark.state:
            iterator.load_state_dict(copy.deepcopy(mark.state["iterator"]))
        opened: Iterator[Any] = iterator
        return opened

    def _skip(self, count: int) -> None:
        skipped = sum(1 for _ in islice(self._iterator, count))
        self._read += skipped
        if skipped < count:
            raise ConfigurationError(
                f"the stream ({type(self._stream).__name__}) has ended after {self._read} examples, and the checkpoint "
                f"is {count - skipped} further; continue with the same stream, one that begins again in each run"
            )

    def _say(self, count: int, seconds: float) -> None:
        if count and self._tells:
            tell(
                f"quorate: the stream ({type(self._stream).__name__}) cannot say its place, so {count:,} examples were "
                f"read again to reach it, in {seconds:.1f} s; with state_dict() and load_state_dict() it goes on at "
                "once\n"
            )

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        item = next(self._iterator) if self._mixing is None else self._next_item()
        self._items += 1
        return item

    def _next_item(self) -> Any:
        assert self._mixing is not None, "items are mixed"
        if not self._block:
            self._at_block = self._read, self._state()
            block = list(islice(self._iterator, self._mixing.size))
            order = self._mixing.order(self._epoch, self._part, self._read // self._mixing.size, len(block))
            self._block = [block[place] for place in reversed(order)]
            self._read += len(block)
        if not self._block:
            raise StopIteration
        return self._block.pop()

    @property
    def mark(self) -> Mark:
        """The place after the items that were returned. Cost: one state of the stream."""
        if self._mixing is None:
            state = self._state()
            return Mark(items=self._items, restored=0 if state is None else self._items, state=state)
        read, state = self._at_block
        return Mark(items=self._items, restored=0 if state is None else read, state=state)

    def _state(self) -> Any:
        owners: dict[str, Any] = {"iterator": self._iterator, "stream": self._stream}
        for name, owner in owners.items():
            if self._knows_place and is_stateful(owner):
                return {name: copy.deepcopy(owner.state_dict())}
        return None


def is_stateful(stream: Any) -> bool:
    """Return whether it can say its place, and go on from one."""
    return callable(getattr(stream, "state_dict", None)) and callable(getattr(stream, "load_state_dict", None))


Open = Callable[[int, Mark], PartReading]
"""Opens a part of a stream at a mark."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place among several parts."""

    part: int
    """The number of the part that is read."""
    mark: Mark
    finished: tuple[int, ...] = ()
    """Parts that the same reading has ended before."""


class PartsReading:
    """An iterator over the items of several parts, one part after the other, from a place on."""

    def __init__(
        self, parts: Iterable[int], mark_of: Callable[[int], Mark], open_part: Open, place: Place | None = None
    ) -> None:
        """`mark_of` returns the place at which a part begins."""
        self._parts, self._mark_of, self._open, self._begin = iter(parts), mark_of, open_part, place
        self._reading: PartReading | None = None
        self._part, self._finished = 0, list[int]()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while self._reading is not None or self._opens_next():
            assert self._reading is not None, "a part was opened"
            try:
                return next(self._reading)
            except StopIteration:
                self._reading = None
                self._finished.append(self._part)
        raise StopIteration

    def _opens_next(self) -> bool:
        for part in self._parts:
            begin = self._begin
            if begin is not None and part != begin.part:
                continue
            self._begin = None
            self._part = part
            self._reading = self._open(part, self._mark_of(part) if begin is None else begin.mark)
            return True
        return False

    @property
    def has_opened(self) -> bool:
        """Whether a part was opened."""
        return self._reading is not None or bool(self._finished)

    @property
    def place(self) -> Place:
        """The place after the items that were returned; at least one was."""
        mark = END if self._reading is None else self._reading.mark
        return Place(part=self._part, mark=mark, finished=tuple(self._finished))
