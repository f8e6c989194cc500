"""Rounds of fragments: round n is of fragment (n - 1) mod K, and the round of a pause is of all of them.

Contributions are cumulative: each has, for every fragment, the delta since a round last took that fragment from the
worker, if the worker has applied that round. So a newer contribution replaces an older one, and nothing is sent twice.
A contribution made before the worker applied a round that took some of it is not sent any more.

A codec encodes the fragments that a worker contributes, and its errors are kept by fragment. A round takes a fragment
in encoded form; the error joins what the next round takes of it. A round that passes by gives both back as they were.
In a pause contributions are sent unencoded, and the error waits on: all errors at once would be a delta that an outer
step with momentum takes too far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from quorate.core.vectors import Flat, Layout, Part, Segment, bare_layout, carried, empty_vector
from quorate.rounds.buffer import Entry, Kept, Ledger, Snapshot
from quorate.rounds.coding import Coding, Encoded
from quorate.rounds.terms import Agreed


@dataclass(frozen=True)
class Fragments:
    """The layouts of the vectors of rounds, by fragment."""

    layouts: tuple[Layout, ...]

    def number(self, of_round: int) -> int:
        """Return the fragment of a round that is no pause."""
        return (of_round - 1) % len(self.layouts)

    def layout(self, of_round: int, *, is_pause: bool) -> Layout:
        """Return the layout of the vectors of a round."""
        return joined(self.layouts) if is_pause else self.layouts[self.number(of_round)]

    def split(self, of_all: Flat) -> list[Flat]:
        fragments, begin = [], 0
        for layout in self.layouts:
            fragments.append(Flat(of_all.parts[begin : begin + len(layout.parts)], layout))
            begin += len(layout.parts)
        return fragments


def joined(layouts: Sequence[Layout]) -> Layout:
    """Return the layout of concatenated vectors; headers become segments of nobody."""
    segments, parts = [], list[Part]()
    for layout in layouts:
        segments += [replace(segment, part=segment.part + len(parts)) for segment in layout.segments]
        parts += layout.parts
    return Layout(tuple(segments), tuple(parts), 0)


@dataclass
class PendingFragments:
    """The buffer of a worker, in place of `pending.PendingGradients`. Weights are steps of fragments. Not locked."""

    agreed: Agreed
    fragments: Fragments
    ledger: Ledger = field(default_factory=Ledger)
    step: float = 0.0
    options: Any = None
    times: int = 0
    _handed: dict[int, Entry] = field(default_factory=dict)
    _taken: dict[int, int] = field(default_factory=dict)  # by fragment, the newest round that took it for good
    _before: dict[int, int] = field(default_factory=dict)
    _from_learner: dict[int, int] = field(default_factory=dict)
    """By fragment: the newest round that has it from another worker of the same learner."""
    coding: CodedFragments | None = None
    _in_vectors: int = 0  # the newest round in the newest contribution
    _is_withdrawn: bool = False
    _counted: float = 0.0

    def hand_in(
        self,
        vectors: Sequence[Flat],
        fresh: float,
        version: int,
        step: float,
        measures: Any,
        *,
        began: int | None = None,
        is_last: bool = False,
    ) -> bool:
        """Add a contribution: what `fresh` steps since the last one have made of all fragments, cumulatively.

        `version` is the newest round in the vectors, `began` the one that they age from (None:
        `version`). With `is_last`, take in nothing and return False if a round beyond `version` has taken something."""
        if is_last and max((*self._taken.values(), *self._from_learner.values()), default=0) > version:
            return False
        self._is_withdrawn, self._in_vectors = False, version
        since = version if began is None else min(began, version)
        self.times += 1
        self.ledger.produced += fresh * len(vectors)
        self.step = step
        for number, vector in enumerate(vectors):
            old = self._handed.get(number)
            weight = fresh + (0.0 if old is None else old.weight)
            self._handed[number] = Entry(since, weight, vector, measures=[measures])
        return True

    def code_by(self, coding: Coding | None) -> None:
        """Encode contributions from now on; None: do not."""
        self.coding = None if coding is None else CodedFragments(coding, self.fragments.layouts)

    def withdraw(self) -> None:
        self._is_withdrawn = True

    @property
    def holds(self) -> int:
        return max(self._taken.values(), default=0)

    def taken_from_learner(self, number: int, *, is_pause: bool) -> None:
        places = range(len(self.fragments.layouts)) if is_pause else [self.fragments.number(number)]
        self._from_learner.update(dict.fromkeys(places, number))

    @property
    def weight(self) -> float:
        """The weight that waits for a round."""
        return sum(entry.weight for entry in self._handed.values())

    def take(self, number: int, *, is_pause: bool = False) -> Snapshot:
        wanted = range(len(self.fragments.layouts)) if is_pause else [self.fragments.number(number)]
        fit: dict[int, Entry] = {}
        for place in wanted:
            entry = self._handed.get(place)
            taken = max(self._taken.get(place, 0), self._from_learner.get(place, 0))
            if entry is None or self._in_vectors < taken or self._is_withdrawn:
                continue
            del self._handed[place]
            staleness = number - 1 - entry.version
            if self._is_too_old(staleness):
                self.ledger.expired += entry.weight
                continue
            fit[place] = entry
            self._before[place] = self._taken.get(place, 0)
            self._taken[place] = number
        snapshot = Snapshot(number, list(fit.values()), self.step, None, times=self.times)
        self.ledger.taken += sum(entry.weight for entry in fit.values())
        snapshot.lost, self._counted = self.ledger.lost - self._counted, self.ledger.lost
        if fit:
            turns = len(self.fragments.layouts)
            counts = {place: self._counts((number - 1 - entry.version) // turns) for place, entry in fit.items()}
            snapshot.weight = sum(counts[place] * entry.weight for place, entry in fit.items()) / len(fit)
            vectors = {
                place: entry.vector if counts[place] == 1.0 else entry.vector * counts[place]
                for place, entry in fit.items()
            }
            if self.coding is not None and not is_pause:
                self._write_small(snapshot, fit, vectors)
            parts = [
                (vectors[place] if place in fit else Flat.zeros(self.fragments.layouts[place])).parts
                for place in wanted
            ]
            layout = self.fragments.layout(number, is_pause=is_pause)
            snapshot.vector = Flat([x for fragment in parts for x in fragment], layout)
        return snapshot

    def _write_small(self, snapshot: Snapshot, fit: Mapping[int, Entry], vectors: dict[int, Flat]) -> None:
        assert self.coding is not None
        for place, vector in [(place, x) for place, x in vectors.items() if fit[place].weight]:
            snapshot.coded[place] = encoded = self.coding.encode(place, vector, snapshot.number)
            vectors[place] = encoded.vector

    def lay_out(self, fragments: Fragments) -> None:
        """Lay out contributions by `fragments` from now on."""
        self.fragments = fragments
        if self.coding is not None:
            self.coding.lay_out(fragments.layouts)

    def _is_too_old(self, staleness: int) -> bool:
        turns = staleness // len(self.fragments.layouts)
        return staleness > self.agreed.max_staleness or (self.agreed.late == "drop" and turns > 0)

    def _counts(self, turns: int) -> float:
        return self.agreed.weight_of(turns)

    def give_back(self, snapshot: Snapshot) -> None:
        self.ledger.taken -= sum(entry.weight for entry in snapshot.entries)
        self._counted -= snapshot.lost
        for place in [place for place, number in self._taken.items() if number == snapshot.number]:
            entry = snapshot.entries.pop(0)
            self._taken[place] = self._before.pop(place, 0)
            if self.coding is not None and place in snapshot.coded:
                self.coding.undo(place, snapshot.coded.pop(place))
            newer = self._handed.setdefault(place, entry)
            if newer is not entry:
                newer.weight += entry.weight

    def lose(self, weight: float) -> None:
        self.ledger.taken -= weight
        self.ledger.expired += weight

    def kept(self, snapshots: Mapping[int, Snapshot], number: int) -> Kept:
        behind = [sent for past, sent in sorted(snapshots.items(), reverse=True) if past > number]
        ledger, error = replace(self.ledger), None
        ledger.taken -= sum(entry.weight for sent in behind for entry in sent.entries)
        if self.coding is not None:
            error = self.coding.error_without([coded for sent in behind for coded in sent.coded.items()])
        return Kept(number=number, step=self.step, options=None, ledger=ledger, entries=[], error=error)

    def restore(self, kept: Kept) -> None:
        self.ledger, self.step, self._counted = kept.ledger, kept.step, kept.ledger.lost
        self._handed, self._taken, self._before, self._from_learner = {}, {}, {}, {}
        if self.coding is not None:
            self.coding.restore(kept.error)


class CodedFragments:
    """The encoded fragments of one worker; `whole` has the codec and the layout of parameters. Not locked."""

    def __init__(self, whole: Coding, layouts: Sequence[Layout]) -> None:
        self._whole = whole
        self._own = [whole.of(layout) for layout in layouts]

    def lay_out(self, layouts: Sequence[Layout]) -> None:
        """Lay out fragments again; the error of tensors that stay is kept."""
        errors = _by_name(coding.error for coding in self._own)
        self._own = [self._whole.of(layout) for layout in layouts]
        self._take(errors)

    def encode(self, place: int, vector: Flat, number: int) -> Encoded:
        """Encode a fragment for round `number`."""
        return self._own[place].encode(vector, number, empty_vector)

    def undo(self, place: int, encoded: Encoded) -> None:
        """Take back a contribution that was not taken."""
        own = self._own[place]
        own.error = own.undone(encoded, own.error)

    def error_without(self, contributions: Iterable[tuple[int, Encoded]]) -> Flat | None:
        """Return the error without these contributions (the newest first), laid out as parameters; None for zero."""
        errors = [coding.error for coding in self._own]
        for place, encoded in contributions:
            errors[place] = self._own[place].undone(encoded, errors[place])
        if all(error is None for error in errors):
            return None
        total, by_name = Flat.zeros(bare_layout(self._whole.layout)), _by_name(errors)
        for segment, numbers in zip(total.layout.segments, total.segments(), strict=True):
            if segment.name in by_name:
                numbers.copy_(by_name[segment.name][1])
        return total

    def restore(self, error: Flat | None) -> None:
        self._own = [coding.of(coding.layout) for coding in self._own]
        self._take(_by_name([error]))

    def _take(self, errors: dict[str, tuple[Segment, Tensor]]) -> None:
        for coding in self._own if errors else ():
            coding.error = Flat.zeros(bare_layout(coding.layout))
            for segment, numbers in zip(coding.layout.segments, coding.error.segments(), strict=True):
                if segment.name in errors and coding.layout.parts[segment.part].coded:
                    before, x = errors[segment.name]
                    numbers.copy_(carried(x, before, segment))


def _by_name(errors: Iterable[Flat | None]) -> dict[str, tuple[Segment, Tensor]]:
    by_name: dict[str, tuple[Segment, Tensor]] = {}
    for error in errors:
        if error is not None:
            parts, named = error.layout.parts, zip(error.layout.segments, error.segments(), strict=True)
            by_name |= {segment.name: (segment, x) for segment, x in named if parts[segment.part].coded}
    return by_name
