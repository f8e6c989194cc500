"""What comes to the first worker of a replica in pieces, until all its workers have their piece of it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from quorate.core.contracts import Message

Stream = Literal["vectors", "copies", "asked"]
"""Vectors of rounds, copies of replicas, and questions whether a worker is there; each comes in order."""
ASKS = ("start", "look", "ping")
"""Kinds of messages that ask whether a replica is there: it is where all its workers are."""
URGENT = ("look", "there", "here", "ping", "pong", "term", "state")
"""Kinds of messages that say who is there, or who leads: they do not wait for vectors to get through, and mean the same
before and after them."""


def stream_of(message: Message) -> Stream | None:
    """Of what a message carries in pieces; None where it is a header alone."""
    if message.header["kind"] == "copy":
        return "copies"
    return "vectors" if message.tensors else None


@dataclass(frozen=True)
class _Held:
    source: int
    message: Message
    stream: Stream | None
    count: int
    """The how manieth it is of its stream."""


class Delivery:
    """That of a replica of `workers` workers; `source` is a replica, by rank.

    Messages of one replica are handed on in the order in which they came, urgent ones as soon as may be.
    """

    def __init__(self, workers: int) -> None:
        self._others = range(1, workers)
        self._held: dict[tuple[int, bool], deque[_Held]] = {}
        self._came = Counter[tuple[int, Stream]]()
        self._has = {other: Counter[tuple[int, Stream]]() for other in self._others}

    def came(self, source: int, message: Message) -> int | None:
        """A message is here; where it asks whether this replica is there, the number under which all workers are to
        answer."""
        kind, stream = message.header["kind"], stream_of(message)
        if kind in ASKS:
            source_asked, stream = (-1, "asked")
        else:
            source_asked = source
        count = 0
        if stream is not None:
            self._came[source_asked, stream] += 1
            count = self._came[source_asked, stream]
        held = _Held(source_asked, message, stream, count)
        self._held.setdefault((source, kind in URGENT), deque()).append(held)
        return count if stream == "asked" else None

    def has(self, other: int, source: int, stream: Stream, count: int) -> None:
        """Worker `other` of this replica has so many pieces of that stream, or has answered so many questions."""
        known = self._has[other]
        known[source, stream] = max(known[source, stream], count)

    def due(self) -> Iterator[tuple[int, Message]]:
        """(source, message) of what all workers have, in order."""
        for (source, _), held in self._held.items():
            while held and self._is_whole(held[0]):
                yield source, held.popleft().message

    def _is_whole(self, one: _Held) -> bool:
        if one.stream is None:
            return True
        return all(self._has[other][one.source, one.stream] >= one.count for other in self._others)

    def forget(self, sources: Collection[int]) -> None:
        """They have died: what has not come from them will not."""
        for key in [key for key in self._held if key[0] in sources]:
            del self._held[key]
