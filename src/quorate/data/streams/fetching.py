"""The batches of one pass over a stream, as a dataset of which a DataLoader requests (lane, number)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor
from torch.utils.data import Dataset, default_collate, default_convert, get_worker_info
from torch.utils.data._utils import worker

from quorate.data.same_data import Item, NoItem, item_of
from quorate.data.streams.dealing import Batch, Dealer, DealtPlace, batches_of
from quorate.data.streams.reading import PartsReading, Place

Key = tuple[int, int]
"""The lane and the number of a batch."""


@dataclass(frozen=True, kw_only=True)
class Label:
    """A batch without its examples, or the end of what one process reads."""

    key: Key
    after: DealtPlace | Place | None = None
    """The place after its last item."""
    examples: int = 0
    first: tuple[Item, ...] = ()
    """The first items of the stream, where it was read from its beginning."""
    has_ended: bool = False
    """Whether there is no such batch; then `count` is the number of batches in the longest lane."""
    count: int = 0
    process: int = 0
    processes: int = 1
    """Processes of this worker that read."""


class Source(Protocol):
    """Reads batches in one process."""

    def batch(self, key: Key) -> tuple[Label, list[Any]]:
        """Return a batch and its label."""


class ItemSource:
    """The batches of a stream whose items several workers share."""

    def __init__(self, dealer: Dealer) -> None:
        self._dealer, self._has_said = dealer, False

    def batch(self, key: Key) -> tuple[Label, list[Any]]:
        """Return a batch and its label."""
        batch = self._dealer.batch(*key)
        if batch is None:
            return Label(key=key, has_ended=True, count=self._dealer.count), []
        first = () if self._has_said else tuple(digests(self._dealer.first))
        self._has_said = True
        return Label(key=key, after=batch.after, examples=len(batch.items), first=first), batch.items


def digests(items: Sequence[Any]) -> list[Item]:
    """Return the digests of items, up to the first that cannot be compared."""
    compared: list[Item] = []
    with suppress(NoItem):
        for item in items:
            compared.append(item_of(item))
    return compared


class PartSource:
    """The batches of parts that one process reads alone; it returns the next one for any key."""

    def __init__(
        self, reading: PartsReading, batch_size: int, process: int, processes: int, *, drop_last: bool
    ) -> None:
        self._reading, self._process, self._processes = reading, process, processes
        self._batches = batches_of(reading, batch_size, drop_last=drop_last)
        self._after: Place | None = None

    def batch(self, key: Key) -> tuple[Label, list[Any]]:
        """Return a batch and its label."""
        batch: Batch | None = next(self._batches, None)
        label = Label(key=key, process=self._process, processes=self._processes)
        if batch is None:
            after = self._reading.place if self._reading.has_opened else None
            return replace(label, after=after, has_ended=True), []
        return replace(label, after=batch.after, examples=len(batch.items)), batch.items


class Fetching(Dataset[Any]):
    """The batches of the newest pass. `collate` makes a batch of items; None: as DataLoader does, and where items are
    batches themselves (`has_batches`), they are converted alone. A stream that `divides_itself` does so among the
    processes of the DataLoader, too."""

    def __init__(self, collate: Callable[[list[Any]], Any] | None, *, has_batches: bool, divides_itself: bool) -> None:
        self._has_batches, self._divides_itself = has_batches, divides_itself
        self._collate: Callable[[Any], Any] = collate or (default_convert if has_batches else default_collate)
        self._open: Callable[[int, int], Source] | None = None
        self._source: Source | None = None

    def begin(self, open_source: Callable[[int, int], Source]) -> None:
        """Begin a pass; `open_source(process, processes)` is called in the process that reads."""
        self._open, self._source = open_source, None

    def __getitems__(self, keys: list[Key]) -> tuple[Label, list[Any]]:
        if self._source is None:
            self.open_now()
        assert self._source is not None, "a source was opened"
        (key,) = keys
        with nullcontext() if self._divides_itself else _in_one_process():
            return self._source.batch(key)

    def open_now(self) -> None:
        """Begin to read in this process."""
        assert self._open is not None, "a pass has begun"
        info = get_worker_info()
        self._source = self._open(*((0, 1) if info is None else (info.id, info.num_workers)))

    def collate(self, labelled: tuple[Label, list[Any]]) -> tuple[Label, Any]:
        """Return the label and the batch."""
        label, items = labelled
        if label.has_ended:
            return label, None
        return label, self._collate(items[0] if self._has_batches else items)


@contextmanager
def _in_one_process() -> Iterator[None]:
    """Let `get_worker_info()` return None: a stream that divides itself by it would divide what is divided already."""
    info, worker._worker_info = worker._worker_info, None
    try:
        yield
    finally:
        worker._worker_info = info


def examples_in(batch: Any) -> int:
    """Return the length of the first tensor in a batch that the stream has formed itself; 1 without any."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else 1
    inside = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return next((examples_in(each) for each in inside), 1)
