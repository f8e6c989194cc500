"""A stream that one worker reads for all: the others receive their items from it, one batch ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import BadFile
from quorate.data.files.dataset import unpacked
from quorate.data.streams.dealing import Dealer, DealtPlace
from quorate.data.streams.fetching import ItemSource, Key, Label
from quorate.data.streams.position import place_as_list, place_from

_TAG = "examples"
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
        header = {"sequence": sequence, "numbers": [[self._wire.rank, open_keys, [*self._pass, *key]]]}
        self._questions.send(Message(header=header), self._reader, _TAG)
        self._asked[key] = self._wire.receive(self._reader, f"{_TAG}/{sequence}")

    def batch(self, key: Key) -> tuple[Label, list[Any]]:
        """Return a batch and its label. Raises `BadFile` where the stream cannot be read."""
        if key not in self._asked:
            self.ask(key)
        _, message = self._asked.pop(key).wait()
        if "error" in message.header:
            raise BadFile(message.header["error"], (self._reader,))
        has_ended, count, after, items = unpacked(message.header["examples"][0], message.tensors)
        label = Label(key=key, after=place_from(after), examples=len(items), has_ended=has_ended, count=count)
        return label, items
