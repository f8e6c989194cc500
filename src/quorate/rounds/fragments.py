"""Rounds of fragments: round n is of fragment (n - 1) mod K, and the round in which all settle is of all of them.

What a worker has not had taken is cumulative: each time it hands in, for every fragment, how far it has gone since a
round last took that fragment of it (and it has applied that round). So a newer handing-in stands for an older one, and
nothing is given twice: what was handed in before a round that took some of it was applied is not given any more.

A codec encodes the fragments that a worker contributes, and its errors are kept by fragment. Contributions are
cumulative, and a round takes a fragment in encoded form; the error joins what the next round takes of it. A round that
passes by gives both back as they were. Where all settle, what was handed in is given as it is, and the error waits on:
all errors at once would be a delta that an outer step with momentum takes too far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from quorate.core.vectors import Flat, Layout, Part, bare_layout, empty_vector
from quorate.rounds.buffer import Entry, Kept, Snapshot
from quorate.rounds.coding import Coding, Given
from quorate.rounds.ledger import Ledger
from quorate.rounds.terms import Agreed


@dataclass(frozen=True)
class Fragments:
    """How vectors of rounds are laid out, by fragment."""

    layouts: tuple[Layout, ...]

    def number(self, of_round: int) -> int:
        """The fragment that a round is of, if nobody settles in it."""
        return (of_round - 1) % len(self.layouts)

    def layout(self, of_round: int, *, settles: bool) -> Layout:
        """Of what goes into a round, and comes out of it."""
        return joined(self.layouts) if settles else self.layouts[self.number(of_round)]

    def split(self, of_all: Flat) -> list[Flat]:
        """What came out of a round in which all have settled, by fragment: views."""
        found, begin = [], 0
        for layout in self.layouts:
            found.append(Flat(of_all.parts[begin : begin + len(layout.parts)], layout))
            begin += len(layout.parts)
        return found


def joined(layouts: Sequence[Layout]) -> Layout:
    """Of vectors behind each other; headers become segments of nobody."""
    segments, parts = [], list[Part]()
    for layout in layouts:
        segments += [replace(one, part=one.part + len(parts)) for one in layout.segments]
        parts += layout.parts
    return Layout(tuple(segments), tuple(parts), 0)


@dataclass
class PendingFragments:
    """The buffer of one worker; as `pending.PendingGradients`, in the place of which it stands.

    Weights are steps, of each fragment. Not locked.
    """

    agreed: Agreed
    fragments: Fragments
    ledger: Ledger = field(default_factory=Ledger)
    step: float = 0.0
    options: Any = None
    times: int = 0
    _handed: dict[int, Entry] = field(default_factory=dict)
    """By fragment."""
    _taken: dict[int, int] = field(default_factory=dict)
    """By fragment: the newest round that took it, unless it came back."""
    _before: dict[int, int] = field(default_factory=dict)
    """By fragment: the one before that."""
    _from_mates: dict[int, int] = field(default_factory=dict)
    """By fragment: the newest round that has it from another worker of the same learner."""
    coding: CodedFragments | None = None
    """Where what is given is written small."""
    _in_vectors: int = 0
    """The newest round that is in what was handed in last."""
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
        """Take in what `fresh` steps since the last time have made of all fragments; the vectors are cumulative.

        `version` is the newest round that is in them, and `began` the newest one that was when the steps began: their
        age goes by it (None: `version`). With `is_last` nothing is taken in, and False is returned, where
        a round that they do not know of has taken something.
        """
        if is_last and max((*self._taken.values(), *self._from_mates.values()), default=0) > version:
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
        """Write what is given small from here on; None: not."""
        self.coding = None if coding is None else CodedFragments(coding, self.fragments.layouts)

    def withdraw(self) -> None:
        """No further round takes what was handed in; until something is handed in again."""
        self._is_withdrawn = True

    @property
    def holds(self) -> int:
        """The newest round that has, or may have, something of this worker."""
        return max(self._taken.values(), default=0)

    def taken_from_mate(self, number: int, *, settles: bool) -> None:
        """Round `number` has what another worker of the same learner has handed in: what is here, too, in part."""
        places = range(len(self.fragments.layouts)) if settles else [self.fragments.number(number)]
        self._from_mates.update(dict.fromkeys(places, number))

    @property
    def weight(self) -> float:
        """What waits for a round."""
        return sum(entry.weight for entry in self._handed.values())

    def take(self, number: int, *, settles: bool = False) -> Snapshot:
        """All that round `number` may have; what is too old for it is counted and gone."""
        wanted = range(len(self.fragments.layouts)) if settles else [self.fragments.number(number)]
        fit: dict[int, Entry] = {}
        for place in wanted:
            entry = self._handed.get(place)
            taken = max(self._taken.get(place, 0), self._from_mates.get(place, 0))
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
            if self.coding is not None and not settles:
                self._write_small(snapshot, fit, vectors)
            parts = [
                (vectors[place] if place in fit else Flat.zeros(self.fragments.layouts[place])).parts
                for place in wanted
            ]
            layout = self.fragments.layout(number, settles=settles)
            snapshot.vector = Flat([x for some in parts for x in some], layout)
        return snapshot

    def _write_small(self, snapshot: Snapshot, fit: Mapping[int, Entry], vectors: dict[int, Flat]) -> None:
        """Put what is given in the place of `vectors`; where no step was made there is no way that counts."""
        assert self.coding is not None
        for place, vector in [one for one in vectors.items() if fit[one[0]].weight]:
            snapshot.coded[place] = given = self.coding.given(place, vector, snapshot.number)
            vectors[place] = given.vector

    def lay_out(self, fragments: Fragments) -> None:
        """Of what is handed in, from here on."""
        self.fragments = fragments
        if self.coding is not None:
            self.coding.lay_out(fragments.layouts)

    def _is_too_old(self, staleness: int) -> bool:
        turns = staleness // len(self.fragments.layouts)
        return staleness > self.agreed.max_staleness or (self.agreed.late == "drop" and turns > 0)

    def _counts(self, turns: int) -> float:
        return self.agreed.weight_of(turns)

    def give_back(self, snapshot: Snapshot) -> None:
        """The round went by without it: it waits again, unless something newer, which has it, does."""
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
        """So much was taken by a round that came to nothing, and is not kept any more."""
        self.ledger.taken -= weight
        self.ledger.expired += weight

    def kept(self, snapshots: Mapping[int, Snapshot], number: int) -> Kept:
        """What is counted, and what a codec has left out: what rounds up to `number` have not taken is in the replica,
        too."""
        behind = [one for given, one in sorted(snapshots.items(), reverse=True) if given > number]
        ledger, error = replace(self.ledger), None
        ledger.taken -= sum(entry.weight for one in behind for entry in one.entries)
        if self.coding is not None:
            given = [(place, made) for one in behind for place, made in one.coded.items()]
            error = self.coding.error_without(given)
        return Kept(number=number, step=self.step, options=None, ledger=ledger, entries=[], error=error)

    def restore(self, kept: Kept) -> None:
        """Go on from there."""
        self.ledger, self.step, self._counted = kept.ledger, kept.step, kept.ledger.lost
        self._handed, self._taken, self._before, self._from_mates = {}, {}, {}, {}
        if self.coding is not None:
            self.coding.restore(kept.error)


class CodedFragments:
    """That of one worker; `whole` knows the codec, and how parameters are laid out. Not locked: see `fragments`."""

    def __init__(self, whole: Coding, layouts: Sequence[Layout]) -> None:
        self._whole = whole
        self._own = [whole.of(layout) for layout in layouts]

    def lay_out(self, layouts: Sequence[Layout]) -> None:
        """Of fragments, from here on; the error of tensors that stay goes on."""
        errors = _by_name(one.error for one in self._own)
        self._own = [self._whole.of(layout) for layout in layouts]
        self._take(errors)

    def given(self, place: int, vector: Flat, number: int) -> Given:
        """What is given of a fragment to round `number` in place of `vector`."""
        return self._own[place].given(vector, number, empty_vector)

    def undo(self, place: int, given: Given) -> None:
        """It was not taken: what was handed in waits again."""
        own = self._own[place]
        own.error = own.undone(given, own.error)

    def error_without(self, given: Iterable[tuple[int, Given]]) -> Flat | None:
        """What would have been left out had these (by fragment, the newest first) not been given.

        Laid out as the parameters; None where that is nothing.
        """
        errors = [one.error for one in self._own]
        for place, one in given:
            errors[place] = self._own[place].undone(one, errors[place])
        if all(error is None for error in errors):
            return None
        found, known = Flat.zeros(bare_layout(self._whole.layout)), _by_name(errors)
        for segment, numbers in zip(found.layout.segments, found.segments(), strict=True):
            if segment.name in known:
                numbers.copy_(known[segment.name])
        return found

    def restore(self, error: Flat | None) -> None:
        """Let this be what was left out, laid out as the parameters."""
        self._own = [one.of(one.layout) for one in self._own]
        self._take(_by_name([error]))

    def _take(self, errors: dict[str, Tensor]) -> None:
        for one in self._own if errors else ():
            one.error = Flat.zeros(bare_layout(one.layout))
            for segment, numbers in zip(one.layout.segments, one.error.segments(), strict=True):
                if segment.name in errors and one.layout.parts[segment.part].coded:
                    numbers.copy_(errors[segment.name])


def _by_name(errors: Iterable[Flat | None]) -> dict[str, Tensor]:
    """By the name of the tensor, of those that are written small."""
    found: dict[str, Tensor] = {}
    for error in errors:
        if error is not None:
            parts, named = error.layout.parts, zip(error.layout.segments, error.segments(), strict=True)
            found |= {one.name: x for one, x in named if parts[one.part].coded}
    return found
