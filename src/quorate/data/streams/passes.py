"""One pass over a stream: the batches that this worker requests, and those that it has consumed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from quorate.core.contracts import Wire
from quorate.core.telling import tell
from quorate.data.assignment import DYNAMIC, DynamicShare, Share
from quorate.data.loader import Pass
from quorate.data.position import union
from quorate.data.streams.dealing import DealtPlace
from quorate.data.streams.fetching import Key, Label
from quorate.data.streams.position import Begun
from quorate.data.streams.reading import END, Mark, Place

_WHOLE = 2**62
"""The progress in a part that has ended."""


@dataclass(frozen=True, kw_only=True)
class Deaths:
    """Progress on the board, from which others continue what a dead worker has left in a pass.

    Each worker writes how far it has computed its lane, or its parts. Cost: one message to the board per batch, where
    training goes on after a death, and nothing elsewhere.
    """

    wire: Wire
    key: str
    is_on: bool

    def note(self, name: str, number: int) -> None:
        """Write how far this worker has computed `name`."""
        if self.is_on:
            self.wire.board.set(f"{self.key}/{name}", b"%d" % number)

    def reached(self, name: str) -> int:
        """Return how far another worker has computed `name`."""
        if not self.is_on or not (self.wire.is_newcomer or self.wire.dead):
            return 0
        return int(self.wire.board.get(f"{self.key}/{name}") or b"0")

    def takes(self, name: str) -> bool:
        """Return whether this worker continues `name`, as the first to ask."""
        return self.wire.board.swap(f"{self.key}/taken/{name}", None, b"%d" % self.wire.rank)

    def say(self, epoch: int, dead: int, count: int, unit: str) -> None:
        """Tell that this worker continues what a dead one has left."""
        tell(f"quorate: rank {self.wire.rank} reads up to {count} {unit} of epoch {epoch} in place of rank {dead}\n")

    @property
    def dead(self) -> Sequence[int]:
        """Ranks that have died."""
        return sorted(self.wire.dead) if self.is_on else ()

    @property
    def have_changed(self) -> bool:
        """Whether other workers are there than at the beginning."""
        return self.wire.is_newcomer or bool(self.wire.dead) or bool(self.wire.joined)


class StreamPass(Pass):
    """The batches of one pass over a stream. Static shares read one lane each, or parts of their own."""

    _began: Begun

    def __init__(
        self,
        share: Share,
        parts: Sequence[int],
        epoch: int,
        number: int,
        began: Begun,
        deaths: Deaths,
        *,
        by_item: bool,
    ) -> None:
        """`parts` are those that have not ended, in the epoch's order."""
        self.epoch, self.number, self._began = epoch, number, began
        self._share, self.parts, self._deaths, self.by_item = share, parts, deaths, by_item
        self._in_hand: deque[Label] = deque()
        self._steps: int | None = None
        self._lanes: dict[int, list[tuple[int, int]]] = {}
        self._marks = dict(began.marks)
        first = parts[0] if parts else 0
        self._place = began.begin or DealtPlace(
            at=Place(part=first, mark=began.mark(first)), counts=(0,) * (len(began.past) + 1)
        )
        self._ended_processes: set[int] = set()
        self._has_ended, self.count, self.seen = False, 0, 0
        self._finished: set[int] = set()

    @property
    def begun(self) -> Begun:
        if not self.by_item:
            return replace(self._began, marks=dict(self._marks))
        consumed = {lane: union(spans) for lane, spans in self._lanes.items()}
        place = None if self._deaths.have_changed else self._place
        return replace(self._began, is_by_item=True, consumed=consumed, place=place)

    def keys(self) -> Iterator[Key]:
        """Yield the batches to request, until the stream has ended."""
        if not self.by_item:
            yield from self._until_end(0, 0)
        elif isinstance(self._share, DynamicShare):
            while not self._has_ended:
                yield 0, self._share.claim(self.number)
            claims = self._share.claims
            for number in () if claims is None else claims.left(self.number, self.count):
                yield 0, number
        else:
            lane = self._share.rank
            if not self._deaths.wire.is_newcomer or self._deaths.takes(f"lane {lane}"):
                yield from self._until_end(lane, self._deaths.reached(f"lane {lane}"))
            for dead in self._deaths.dead:
                lane = dead % self._share.size
                if self._deaths.takes(f"lane {lane}"):
                    begin = self._deaths.reached(f"lane {lane}")
                    self._deaths.say(self.epoch, dead, max(0, self.count - begin), "batches")
                    for number in range(begin, self.count):
                        yield lane, number

    def _until_end(self, lane: int, begin: int) -> Iterator[Key]:
        for number in count(begin):
            if self._has_ended:
                return
            yield lane, number

    def open_keys(self) -> list[Key]:
        """Return the batches in hand."""
        return [label.key for label in self._in_hand]

    def own_parts(self, process: int, processes: int) -> Iterator[int]:
        """Yield the parts that one process of this worker reads alone."""
        if not isinstance(self._share, DynamicShare):
            yield from self._parts_of(self._share.rank)[process::processes]
            for dead in self._deaths.dead if processes == 1 else ():
                lane = dead % self._share.size
                if self._deaths.takes(f"parts of {lane}"):
                    left = [part for part in self._parts_of(lane) if not self.mark_of(part).is_finished]
                    self._deaths.say(self.epoch, dead, len(left), "shards")
                    yield from left
            return
        while (index := self._share.claim(self.number)) < len(self.parts):
            yield self.parts[index]
        claims = self._share.claims
        for index in () if claims is None else claims.left(self.number, len(self.parts)):
            yield self.parts[index]

    def _parts_of(self, lane: int) -> Sequence[int]:
        return self.parts[lane :: self._share.size]

    def mark_of(self, part: int) -> Mark:
        """Return the place at which a part begins: where the pass began, or where a worker that died has been."""
        mark, reached = self._began.mark(part), self._deaths.reached(f"part {part}")
        if reached == _WHOLE:
            return END
        return replace(mark, items=reached) if reached > mark.items else mark

    def end(self, label: Label) -> None:
        """Note that a process has read all that it can."""
        self._in_hand.append(label)
        self._ended_processes.add(label.process)
        self.count = max(self.count, label.count)
        self._has_ended = self.by_item or len(self._ended_processes) == label.processes

    def give(self, steps: int | None, label: Label) -> int:
        self.pause(steps)
        self._in_hand.append(label)
        is_common = self._share.kind == DYNAMIC and self.by_item
        self.newest = label.key[1] if is_common else label.key[1] * self._share.size
        self.seen += 1
        self._steps = steps
        return label.examples

    def pause(self, steps: int | None) -> None:
        if steps is not None and steps == self._steps:
            return
        while self._in_hand:
            self._consume(self._in_hand.popleft())

    def _consume(self, label: Label) -> None:
        after, (lane, number) = label.after, label.key
        if isinstance(after, Place):
            for part in after.finished:
                self._reach(part, END)
            self._reach(after.part, after.mark)
        elif not label.has_ended:
            spans = self._lanes.setdefault(lane, [])
            if spans and spans[-1][1] == number:
                spans[-1] = spans[-1][0], number + 1
            else:
                spans.append((number, number + 1))
            self._place = after or self._place
            self._share.computed(self.number, number)
            if self._share.kind != DYNAMIC:
                self._deaths.note(f"lane {lane}", number + 1)

    def _reach(self, part: int, mark: Mark) -> None:
        if part in self._finished:
            return
        self._marks[part] = mark
        if mark.is_finished:
            self._finished.add(part)
            self._share.computed(self.number, self.parts.index(part))
            self._deaths.note(f"part {part}", _WHOLE)
        else:
            self._deaths.note(f"part {part}", mark.items)
