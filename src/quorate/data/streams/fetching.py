"""The batches of one pass over a stream, as a dataset of which a DataLoader requests (lane, number)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Protocol

from torch import Tensor
from torch.utils.data import Dataset, default_collate, default_convert, get_worker_info
from torch.utils.data._utils import worker

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import BadFile
from quorate.data.files.dataset import TAG, Answer, Question
from quorate.data.same_data import Item, NoItem, item_of
from quorate.data.streams.dealing import Batch, Dealer, DealtPlace, batches_of
from quorate.data.streams.position import place_as_list, place_from
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
    processes of the DataLoader, too. `open_source(pass, process, processes)` is called in the process that reads."""

    def __init__(
        self,
        open_source: Callable[[Any, int, int], Source],
        collate: Callable[[list[Any]], Any] | None,
        *,
        has_batches: bool,
        divides_itself: bool,
    ) -> None:
        self._open, self._has_batches, self._divides_itself = open_source, has_batches, divides_itself
        self._collate: Callable[[Any], Any] = collate or (default_convert if has_batches else default_collate)
        self._pass: Any = None
        self._source: Source | None = None

    def begin(self, stream_pass: Any) -> None:
        """Begin a pass, the first argument of `open_source`."""
        self._pass, self._source = stream_pass, None

    def __getitems__(self, keys: list[Key]) -> tuple[Label, list[Any]]:
        if self._source is None:
            self.open_now()
        assert self._source is not None, "a source was opened"
        (key,) = keys
        with nullcontext() if self._divides_itself else _in_one_process():
            return self._source.batch(key)

    def open_now(self) -> None:
        """Begin to read in this process."""
        assert self._pass is not None, "a pass has begun"
        info = get_worker_info()
        self._source = self._open(self._pass, *((0, 1) if info is None else (info.id, info.num_workers)))

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


_PASSES = 3
"""Passes that are kept, as workers may be in different ones."""


class Served:
    """The batches that the reading worker has for all. `open_dealer(epoch, is_fresh)` begins a pass.

    Batches that another worker has not computed are kept, and returned again to whom takes them over after its death.
    """

    def __init__(self, open_dealer: Callable[[int, bool], Dealer]) -> None:
        self._open_dealer = open_dealer
        self._sources: dict[int, ItemSource] = {}
        self._sent: dict[int, dict[tuple[int, Key], tuple[Label, list[Any]]]] = {}
        self._lock = Lock()
        """Guards the stream, which another thread may read for other workers."""

    def batch(self, number: int, epoch: int, is_fresh: bool, key: Key) -> tuple[Label, list[Any]]:
        """Return a batch of pass `number`, which is in this epoch."""
        with self._lock:
            for sent in self._sent.values():
                if (number, key) in sent:
                    return sent[number, key]
            if number not in self._sources:
                self._sources[number] = ItemSource(self._open_dealer(epoch, is_fresh))
                for old in sorted(self._sources)[:-_PASSES]:
                    del self._sources[old]
            return self._sources[number].batch(key)

    def answer(self, question: Sequence[Any]) -> Any:
        """Return what another worker asks for, as values that a message can hold. Raises `BadFile`."""
        asker, open_keys, (number, epoch, is_fresh, lane, batch) = question
        key, still_open = (number, (lane, batch)), {tuple(each) for each in open_keys}
        kept = {at: sent for at, sent in self._sent.get(asker, {}).items() if at[1] in still_open}
        try:
            label, items = self.batch(number, epoch, is_fresh, key[1])
        except Exception as error:  # the stream's own
            raise BadFile(f"the worker that reads the stream for all cannot read on: {error}") from error
        self._sent[asker] = kept | ({} if label.has_ended else {key: (label, items)})
        assert label.after is None or isinstance(label.after, DealtPlace), "items are shared"
        return [label.has_ended, label.count, place_as_list(label.after), items]


class RemoteSource:
    """The batches of one pass, on a worker that receives them from worker `reader`."""

    def __init__(
        self, wire: Wire, reader: int, number: int, epoch: int, open_keys: Callable[[], list[Key]], *, is_fresh: bool
    ) -> None:
        """`open_keys()` are batches that this worker has received and not computed."""
        self._open_keys = open_keys
        self._wire, self._reader = wire, reader
        self._pass = [number, epoch, is_fresh]
        self._questions = wire.channel("questions")
        self._asked: dict[Key, Work[tuple[int, Message]]] = {}

    def ask(self, key: Key) -> None:
        """Request a batch that is fetched soon."""
        sequence = "/".join(map(str, [*self._pass, *key]))
        open_keys = [*self._asked, *self._open_keys()]
        question = Question(sequence, [[self._wire.rank, open_keys, [*self._pass, *key]]])
        self._questions.send(Message(header=question.header()), self._reader, TAG)
        self._asked[key] = self._wire.receive(self._reader, f"{TAG}/{sequence}")

    def batch(self, key: Key) -> tuple[Label, list[Any]]:
        """Return a batch and its label. Raises `BadFile` where the stream cannot be read."""
        if key not in self._asked:
            self.ask(key)
        ((has_ended, count, after, items),) = Answer.take(self._asked.pop(key))
        label = Label(key=key, after=place_from(after), examples=len(items), has_ended=has_ended, count=count)
        return label, items
