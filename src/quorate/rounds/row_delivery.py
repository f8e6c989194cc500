"""Delivery of messages to a replica in pieces: each waits until all its workers have their piece of it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from quorate.core.contracts import Message

Stream = Literal["vectors", "copies", "asked"]
"""Vectors of rounds, copies of replicas, and questions whether a worker is there; each in order."""
ASKS = ("start", "look", "ping")
"""Kinds of messages that ask whether all workers of a replica are there."""
URGENT = ("look", "there", "here", "ping", "pong", "term", "state")
"""Kinds of messages about who is there, or leads: they overtake vectors, and mean the same before and after them."""


def stream_of(message: Message) -> Stream | None:
    """Return the stream of a message that carries tensors; None for a header alone."""
    if message.header["kind"] == "copy":
        return "copies"
    return "vectors" if message.tensors else None


@dataclass(frozen=True)
class _Held:
    source: int
    message: Message
    stream: Stream | None
    count: int  # its number in its stream, from 1


class Delivery:
    """Delivery to a replica of `workers` workers, in order for each source but for urgent messages."""

    def __init__(self, workers: int) -> None:
        self._others = range(1, workers)
        self._held: dict[tuple[int, bool], deque[_Held]] = {}
        self._received = Counter[tuple[int, Stream]]()
        self._has = {other: Counter[tuple[int, Stream]]() for other in self._others}

    def add(self, source: int, message: Message) -> int | None:
        kind, stream = message.header["kind"], stream_of(message)
        if kind in ASKS:
            source_asked, stream = (-1, "asked")
        else:
            source_asked = source
        count = 0
        if stream is not None:
            self._received[source_asked, stream] += 1
            count = self._received[source_asked, stream]
        held = _Held(source_asked, message, stream, count)
        self._held.setdefault((source, kind in URGENT), deque()).append(held)
        return count if stream == "asked" else None

    def has(self, other: int, source: int, stream: Stream, count: int) -> None:
        """Note that worker `other` has `count` pieces of a stream, or has answered as many questions."""
        known = self._has[other]
        known[source, stream] = max(known[source, stream], count)

    def due(self) -> Iterator[tuple[int, Message]]:
        """Yield (source, message) for all that every worker has, in order."""
        for (source, _), held in self._held.items():
            while held and self._is_whole(held[0]):
                yield source, held.popleft().message

    def _is_whole(self, held: _Held) -> bool:
        if held.stream is None:
            return True
        return all(self._has[other][held.source, held.stream] >= held.count for other in self._others)

    def forget(self, sources: Collection[int]) -> None:
        """Forget the messages of replicas that have died."""
        for key in [key for key in self._held if key[0] in sources]:
            del self._held[key]
