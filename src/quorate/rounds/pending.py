"""What a worker has produced and no round has taken in yet. Nothing is lost uncounted.

produced = taken + pending + dropped + replaced + expired, at any time, in weights; `taken` is what rounds have taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quorate.core.vectors import Flat
from quorate.rounds.terms import Agreed


@dataclass
class Entry:
    """Contributions computed on the parameters of one round, added up in float32 (or the parameters' wider type)."""

    version: int
    weight: float
    vector: Flat
    count: int = 1
    measures: list[Any] = field(default_factory=list)
    """What was told with them, in order."""


@dataclass
class Snapshot:
    """What one worker gives to one round; kept until the round after it is there."""

    number: int
    entries: list[Entry]
    step: int
    """The greatest local step contributed so far."""
    options: Any
    """The optimizer's numbers at that step."""
    vector: Flat | None = None
    """The sum, each entry by what its staleness counts; None where there is nothing."""
    weight: float = 0.0
    """Likewise."""

    @property
    def stalenesses(self) -> list[tuple[int, int]]:
        """(staleness, number of contributions), the freshest last."""
        return [(self.number - 1 - entry.version, entry.count) for entry in self.entries]

    @property
    def header(self) -> dict[str, Any]:
        """All but the vectors, as JSON."""
        return {
            "number": self.number,
            "weight": self.weight,
            "step": self.step,
            "options": self.options,
            "stalenesses": self.stalenesses,
            "measures": [word for entry in self.entries for word in entry.measures],
        }


@dataclass
class Ledger:
    """Weights of contributions by what became of them."""

    produced: float = 0.0
    taken: float = 0.0
    dropped: float = 0.0
    replaced: float = 0.0
    expired: float = 0.0


@dataclass(kw_only=True)
class Kept:
    """What a checkpoint holds of one worker, as it is after it has applied round `number`."""

    number: int
    step: int
    """The greatest local step this worker has contributed."""
    options: Any
    """The optimizer's numbers at that step."""
    ledger: Ledger
    entries: list[Entry]
    """What this worker has contributed and no round up to `number` has taken in."""
    best_step: int = 0
    """The greatest local step that was contributed to rounds up to `number`, by anyone."""
    best_options: Any = None
    """The optimizer's numbers at that step."""
    settings: dict[str, Any] = field(default_factory=dict)
    """In force after that round, as far as not agreed at the start."""
    request: int = -1
    """The newest request for other settings that was answered; -1: none."""


@dataclass
class PendingGradients:
    """The buffer of one worker. Not locked: whoever shares it between threads locks around it."""

    agreed: Agreed
    entries: list[Entry] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    step: int = 0
    options: Any = None
    blank: Callable[[], Flat] | None = None
    """Gives vectors to form sums in; None: ordinary memory."""

    def add(self, vector: Flat, weight: float, version: int, step: int, options: Any, measures: Any = None) -> None:
        """Take in a contribution; `vector` is the caller's no more, `measures` any JSON beside it."""
        words = [] if measures is None else [measures]
        self.ledger.produced += weight
        self.step, self.options = step, options
        if self.agreed.late == "replace":
            self.ledger.replaced += sum(entry.weight for entry in self.entries)
            self.entries = []
        for entry in self.entries:
            if entry.version == version:
                entry.vector = vector.add_(entry.vector)  # the old one may still be on its way
                entry.weight += weight
                entry.count += 1
                entry.measures += words
                return
        self.entries.append(Entry(version, weight, vector, measures=words))

    @property
    def weight(self) -> float:
        """What waits for a round."""
        return sum(entry.weight for entry in self.entries)

    def take(self, number: int) -> Snapshot:
        """All that round `number` may have; what is too old for it is counted and gone."""
        entries, self.entries = self.entries, []
        fit = []
        for entry in entries:
            staleness = number - 1 - entry.version
            if self.agreed.late == "drop" and staleness > 0:
                self.ledger.dropped += entry.weight
            elif staleness > self.agreed.max_staleness:
                self.ledger.expired += entry.weight
            else:
                fit.append(entry)
        snapshot = Snapshot(number, fit, self.step, self.options)
        for entry in fit:
            counts = self.agreed.weight_of(number - 1 - entry.version)
            snapshot.vector = self._sum(snapshot.vector, entry.vector, counts)
            snapshot.weight += counts * entry.weight
        self.ledger.taken += sum(entry.weight for entry in fit)
        return snapshot

    def _sum(self, so_far: Flat | None, vector: Flat, counts: float) -> Flat:
        """`so_far` and `counts` times `vector`, which stay as they are."""
        if so_far is None and counts == 1.0:
            return vector
        into = Flat.empty(vector.layout) if self.blank is None else self.blank()
        part = vector if counts == 1.0 else vector.times(counts, into)
        return part if so_far is None else so_far.plus(part, into)

    def kept(self, snapshots: Mapping[int, Snapshot], number: int) -> Kept:
        """What rounds up to `number` have not taken in: what waits, and the `snapshots` given to those behind it."""
        behind = [entry for given, one in sorted(snapshots.items()) if given > number for entry in one.entries]
        ledger = replace(self.ledger)
        ledger.taken -= sum(entry.weight for entry in behind)
        entries = [replace(entry) for entry in (*behind, *self.entries)]
        return Kept(number=number, step=self.step, options=self.options, ledger=ledger, entries=entries)

    def restore(self, kept: Kept) -> None:
        """Go on from there."""
        self.entries, self.ledger, self.step, self.options = kept.entries, kept.ledger, kept.step, kept.options

    def lose(self, weight: float) -> None:
        """So much was taken by a round that came to nothing, and is not kept any more."""
        self.ledger.taken -= weight
        self.ledger.expired += weight

    def give_back(self, snapshot: Snapshot) -> None:
        """The round went by without it: it waits again."""
        self.ledger.taken -= sum(entry.weight for entry in snapshot.entries)
        for old in snapshot.entries:
            same = next((entry for entry in self.entries if entry.version == old.version), None)
            if same is None:
                self.entries.insert(0, old)
            else:
                same.vector = same.vector + old.vector
                same.weight += old.weight
                same.count += old.count
                same.measures = old.measures + same.measures
