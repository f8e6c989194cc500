"""The position of one worker in a stream, and its remainder for workers that may be others than before."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.data.assignment import DYNAMIC
from quorate.data.position import Begun as IndexedBegun
from quorate.data.position import Dealt, Spans, begun_as_json, begun_from, union
from quorate.data.streams.dealing import DealtPlace
from quorate.data.streams.reading import BEGIN, END, Mark, Place

ALL: Spans = ((0, 2**62),)
"""All batches of a lane."""


@dataclass(frozen=True, kw_only=True)
class Begun:
    """One worker's progress in an epoch of a stream that was begun."""

    marks: Mapping[int, Mark] = field(default_factory=dict)
    """Places in parts that were read by one worker each, by part."""
    past: tuple[Dealt, ...] = ()
    """Divisions of earlier runs, where all workers share the items of all parts."""
    begin: DealtPlace | None = None
    """The place up to which all items were consumed in earlier runs."""
    is_by_item: bool = False
    """Whether the workers share the items, so that `marks` stay as they are in this epoch."""
    consumed: Mapping[int, Spans] = field(default_factory=dict)
    """Batches that this worker has consumed since the last division, by lane."""
    place: DealtPlace | None = None
    """The place after the last of them, where no worker has died or joined."""

    def mark(self, part: int) -> Mark:
        """Return the place at which this part continues."""
        return self.marks.get(part, BEGIN)

    def left_of(self, parts: Sequence[int]) -> list[int]:
        """Return the parts, in order, that have not ended."""
        return [part for part in parts if not self.mark(part).is_finished]

    def as_plain(self) -> dict[str, Any]:
        """Return the progress as numbers, text, lists and dicts, beside the states of the stream."""
        progress = begun_as_json(IndexedBegun(past=self.past))
        return {
            "marks": [[part, *_mark_as_list(mark)] for part, mark in sorted(self.marks.items())],
            "past": progress["past"],
            "begin": place_as_list(self.begin),
            "is_by_item": self.is_by_item,
            "consumed": [[lane, [list(span) for span in spans]] for lane, spans in sorted(self.consumed.items())],
            "place": place_as_list(self.place),
        }

    def as_json(self) -> dict[str, Any]:
        """Return the progress as plain JSON values; states of the stream that are none are left out."""
        marks = {part: _jsonable(mark) for part, mark in self.marks.items()}
        begin = self.begin
        if begin is not None and not _is_jsonable(begin.at.mark.state):
            begin = DealtPlace(at=replace(begin.at, mark=_jsonable(begin.at.mark)), counts=begin.counts)
        return replace(self, marks=marks, begin=begin, place=None).as_plain()

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Begun:
        """Return the progress that `as_plain` has described."""
        return cls(
            marks={int(part): _mark_from(mark) for part, *mark in plain["marks"]},
            past=begun_from({"past": plain["past"], "consumed": []}).past,
            begin=place_from(plain["begin"]),
            is_by_item=bool(plain["is_by_item"]),
            consumed={
                int(lane): union((int(begin), int(end)) for begin, end in spans) for lane, spans in plain["consumed"]
            },
            place=place_from(plain["place"]),
        )


def _is_jsonable(state: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(state)) == state)
    except (TypeError, ValueError):
        return False


def _jsonable(mark: Mark) -> Mark:
    return mark if _is_jsonable(mark.state) else replace(mark, restored=0, state=None)


def _mark_as_list(mark: Mark) -> list[Any]:
    return [mark.items, mark.restored, mark.state]


def _mark_from(plain: Sequence[Any]) -> Mark:
    items, restored, state = plain
    return Mark(items=int(items), restored=int(restored), state=state)


def place_as_list(place: DealtPlace | None) -> list[Any] | None:
    """Return a place as numbers, beside the state of the stream."""
    return None if place is None else [list(place.counts), place.at.part, *_mark_as_list(place.at.mark)]


def place_from(plain: Sequence[Any] | None) -> DealtPlace | None:
    """Return the place that `place_as_list` has described."""
    if plain is None:
        return None
    counts, part, *mark = plain
    return DealtPlace(at=Place(part=int(part), mark=_mark_from(mark)), counts=tuple(int(count) for count in counts))


@dataclass(frozen=True, kw_only=True)
class StreamPosition:
    """One worker's position in a stream: the checked state of its loader."""

    rank: int
    size: int
    share: str
    read: str
    batch_size: int
    drop_last: bool
    seed: int
    shuffle_buffer: int
    parts: int
    trained: bool
    epoch: int
    begun: Mapping[int, Begun] = field(default_factory=dict)
    """By epoch."""

    def as_plain(self) -> dict[str, Any]:
        """Return the position as numbers, text, lists and dicts, beside the states of the stream."""
        return {**vars(self), "begun": {str(epoch): begun.as_plain() for epoch, begun in self.begun.items()}}

    @classmethod
    def from_plain(cls, state: Mapping[str, Any]) -> StreamPosition:
        """Return the position that `as_plain` has described. Raises `ConfigurationError` for anything else."""
        try:
            types = {"share": str, "read": str, "drop_last": bool, "trained": bool}
            plain = {name: types.get(name, int)(state[name]) for name in cls.__dataclass_fields__ if name != "begun"}
            return cls(**plain, begun={int(epoch): Begun.read(each) for epoch, each in state["begun"].items()})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"this is not the state of a loader of a stream ({type(error).__name__}: {error})"
            ) from error

    def check(self, **here: Any) -> None:
        """Raise `ConfigurationError` where this stream, `here`, is another one, or is ordered otherwise."""
        for name, value in here.items():
            if getattr(self, name) != value:
                raise ConfigurationError(
                    f"the position was kept in a stream with {name}={getattr(self, name)}, and this loader has "
                    f"{name}={value}; go on with the same"
                )


def deal_again(workers: Sequence[StreamPosition]) -> tuple[int, dict[int, Begun]]:
    """Return the epoch in which a new set of workers continues, and the remainders of epochs.

    It is the first epoch of an old worker. A missing old worker (it was dead) has consumed nothing that is known.
    """
    first, last = min(worker.epoch for worker in workers), max(worker.epoch for worker in workers)
    if not any(worker.trained for worker in workers):
        return last, {}
    begun_epochs = {epoch for worker in workers for epoch in worker.begun if epoch >= first}
    return first, {epoch: _together(workers, epoch) for epoch in sorted(begun_epochs.union(range(first, last)))}


def _together(workers: Sequence[StreamPosition], epoch: int) -> Begun:
    begun = [worker.begun[epoch] for worker in workers if epoch in worker.begun]
    marks: dict[int, Mark] = {}
    for part, mark in chain.from_iterable(each.marks.items() for each in begun):
        if mark.is_finished or (not marks.get(part, END).is_finished and mark.items > marks[part].items):
            marks[part] = mark
        marks.setdefault(part, mark)
    by_item = [each for each in begun if each.is_by_item]
    if not by_item:
        return Begun(marks=marks)
    past, begin, lanes = by_item[0].past, by_item[0].begin, dict[int, list[tuple[int, int]]]()
    for worker in workers:
        progress = worker.begun.get(epoch)
        if progress is None and epoch < worker.epoch and worker.share != DYNAMIC:
            lanes.setdefault(worker.rank, []).extend(ALL)
        for lane, spans in {} if progress is None else progress.consumed.items():
            lanes.setdefault(lane, []).extend(spans)
    places = [each.place for each in by_item]
    if len(by_item) == workers[0].size and None not in places:
        begin = min((place for place in places if place is not None), key=lambda place: place.counts[0])
    dealt = Dealt(
        share=workers[0].share,
        size=workers[0].size,
        batch_size=workers[0].batch_size,
        drop_last=False,
        consumed=tuple(union(lanes.get(lane, ())) for lane in range(workers[0].size)),
    )
    return _pruned(Begun(marks=marks, past=(*past, dealt), begin=begin, is_by_item=True))


def _pruned(begun: Begun) -> Begun:
    """Leave out divisions all of whose consumed items are before the place where reading begins."""
    if begun.begin is None:
        return begun
    counts = [*begun.begin.counts, 0]
    past: list[Dealt] = []
    kept = [counts[0]]
    for dealt, before, after in zip(begun.past, counts, counts[1:], strict=False):
        if _end_of(dealt) > before:
            past.append(dealt)
            kept.append(after)
        else:
            kept[-1] = after
    return replace(begun, past=tuple(past), begin=replace(begun.begin, counts=tuple(kept)))


def _end_of(dealt: Dealt) -> int:
    """Return a place after which no item was consumed."""
    lanes = 1 if dealt.share == DYNAMIC else dealt.size
    newest = max((spans[-1][1] for spans in dealt.consumed if spans), default=0)
    return newest * dealt.batch_size * lanes
