"""The contributions of a worker that rounds have not taken for good: pending, sent, or kept. Nothing is lost uncounted.

produced = taken + pending + dropped + replaced + expired, at any time, in weights; `taken` is what rounds have taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from quorate.core.vectors import Flat, Layout, add_into, empty_vector, placeholder, scale_into
from quorate.rounds.buffer import Buffer, Entry, Kept, Ledger, Snapshot
from quorate.rounds.calls import Learners
from quorate.rounds.coding import Coding
from quorate.rounds.log import HISTORY, Log, LogState, Marks
from quorate.rounds.terms import Agreed

_IN_PLACE_BYTES = 1 << 25
"""Bytes of a vector from which on contributions are added in the memory of the first one."""


@dataclass
class PendingGradients:
    """The buffer of one worker. Not locked: whoever shares it between threads locks around it."""

    agreed: Agreed
    entries: list[Entry] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    step: float = 0.0
    options: Any = None
    times: int = 0
    blank: Callable[[Layout], Flat] | None = None  # makes vectors to add up in; None: ordinary memory
    coding: Coding | None = None
    _counted: float = 0.0

    def add(
        self,
        vector: Flat,
        weight: float,
        version: int,
        step: float,
        options: Any,
        measures: Any = None,
        *,
        is_lent: Callable[[], bool] | None = None,
    ) -> None:
        """Add a contribution. Its vector is overwritten later; not as long as `is_lent()`."""
        words = [] if measures is None else [measures]
        self.times += 1
        self.ledger.produced += weight
        self.step, self.options = step, options
        if self.agreed.late == "replace":
            self.ledger.replaced += sum(entry.weight for entry in self.entries)
            self.entries = []
        for entry in self.entries:
            if entry.version == version:
                is_new = self._is_large_and_free(entry)
                into = entry.vector if is_new else vector if is_lent is None else self._empty(vector.layout)
                entry.vector = add_into(vector, entry.vector, into)
                entry.is_lent = entry.is_lent if is_new else None
                entry.is_kept, entry.weight = False, entry.weight + weight
                entry.count += 1
                entry.measures += words
                return
        self.entries.append(Entry(version, weight, vector, measures=words, is_lent=is_lent))

    def _is_large_and_free(self, entry: Entry) -> bool:
        """Return whether to add to the vector of an entry in place: a new one would take much memory."""
        is_seen = entry.is_kept or (entry.is_lent is not None and entry.is_lent())
        return self.agreed.vector_bytes >= _IN_PLACE_BYTES and not is_seen and self.coding is None

    @property
    def weight(self) -> float:
        """The weight that waits for a round."""
        return sum(entry.weight for entry in self.entries)

    def take(self, number: int, *, is_pause: bool = False) -> Snapshot:
        entries, self.entries = self.entries, []
        fit, has_expired = list[Entry](), False
        for entry in entries:
            staleness = number - 1 - entry.version
            has_expired = staleness > self.agreed.max_staleness or (entry.is_joined and has_expired)
            if self.agreed.late == "drop" and staleness > 0:
                self.ledger.dropped += entry.weight
            elif has_expired:
                self.ledger.expired += entry.weight
            else:
                fit.append(entry)
        snapshot = Snapshot(number, fit, self.step, self.options, times=self.times)
        is_in_place = len(fit) > 1 and self.agreed.late_weight == "full" and self._is_large_and_free(fit[0])
        for entry in fit:
            counts = self.agreed.weight_of(number - 1 - entry.version)
            snapshot.weight += counts * entry.weight
            if is_in_place and snapshot.vector is not None:
                add_into(snapshot.vector, entry.vector, snapshot.vector)
                entry.vector, entry.is_joined = placeholder(entry.vector.layout), True
            else:
                snapshot.vector = self._sum(snapshot.vector, entry.vector, counts)
            entry.is_kept = True
        if self.coding is not None and snapshot.vector is not None:
            new, wanted = empty_vector if self.blank is None else self.blank, snapshot.vector
            encoded = self.coding.whole(wanted, new) if is_pause else self.coding.encode(wanted, number, new)
            snapshot.vector, snapshot.coded[0] = encoded.vector, encoded
        self.ledger.taken += sum([entry.weight for entry in fit])
        snapshot.lost, self._counted = self.ledger.lost - self._counted, self.ledger.lost
        return snapshot

    def _sum(self, so_far: Flat | None, vector: Flat, counts: float) -> Flat:
        if so_far is None and counts == 1.0:
            return vector
        into = self._empty(vector.layout)
        part = vector if counts == 1.0 else scale_into(vector, counts, into)
        return part if so_far is None else add_into(so_far, part, into)

    def _empty(self, layout: Layout) -> Flat:
        return empty_vector(layout) if self.blank is None else self.blank(layout)

    def taken_from_learner(self, number: int, *, is_pause: bool) -> None:
        """Do nothing: gradients are every worker's own."""

    def kept(self, snapshots: Mapping[int, Snapshot], number: int) -> Kept:
        behind = [entry for past, sent in sorted(snapshots.items()) if past > number for entry in sent.entries]
        ledger = replace(self.ledger)
        ledger.taken -= sum(entry.weight for entry in behind)
        for entry in self.entries:
            entry.is_kept = True
        entries = [replace(entry) for entry in (*behind, *self.entries)]
        error = None if self.coding is None else self.coding.error
        for _, sent in sorted(snapshots.items(), reverse=True):
            error = self._undone(sent, error) if sent.number > number else error
        return Kept(number=number, step=self.step, options=self.options, ledger=ledger, entries=entries, error=error)

    def restore(self, kept: Kept) -> None:
        self.entries, self.ledger, self.step, self.options = kept.entries, kept.ledger, kept.step, kept.options
        self._counted = self.ledger.lost
        if self.coding is not None:
            self.coding.error = kept.error

    def _undone(self, snapshot: Snapshot, error: Flat | None) -> Flat | None:
        if self.coding is None or 0 not in snapshot.coded:
            return error
        return self.coding.undone(snapshot.coded[0], error)

    def lose(self, weight: float) -> None:
        self.ledger.taken -= weight
        self.ledger.expired += weight

    def give_back(self, snapshot: Snapshot) -> None:
        self.ledger.taken -= sum(entry.weight for entry in snapshot.entries)
        self._counted -= snapshot.lost
        if self.coding is not None:
            self.coding.error = self._undone(snapshot, self.coding.error)
        for old in reversed(snapshot.entries):
            same = next((entry for entry in self.entries if entry.version == old.version), None)
            if same is None:
                self.entries.insert(0, old)
            else:
                same.vector = same.vector + old.vector
                same.weight += old.weight
                same.count += old.count
                same.measures = old.measures + same.measures


class Giving:
    """The contributions that worker `rank` has sent: each is counted once, or taken back. `lock` guards `pending`."""

    def __init__(self, pending: Buffer, log: Log, rank: int, lock: AbstractContextManager[Any]) -> None:
        self._pending, self._log, self._rank, self._lock = pending, log, rank, lock
        learners = pending.agreed.learners
        self._same_learner = Learners(learners).same_learner(rank) if learners else frozenset[int]()
        self.snapshots: dict[int, Snapshot] = {}
        self._early = 0  # the round that the newest early contribution is for
        self._weights: dict[int, float] = {}  # by round, the weight sent and not taken back, as far as copies tell

    def give_early(self, number: int) -> Snapshot:
        """Return the snapshot for round `number` before a leader asks for it. Where one asks, it has not used this
        snapshot: the answer is another, of all that is pending then."""
        self._early = 0
        early = self.give(number)
        self._early = number
        return early

    def give(self, number: int, *, is_pause: bool = False) -> Snapshot:
        """Return the snapshot for round `number`, the same when it is asked for again."""
        if number == self._early and number in self.snapshots and number > self._log.newest:
            self._take_back(number)
        self._early, known = 0, self.snapshots.get(number)
        if number <= self._log.newest:  # formed under another leader: one of the two will come to nothing
            return Snapshot(number, [], self._pending.step, self._pending.options)
        if known is not None:
            return known
        with self._lock:
            snapshot = self.snapshots[number] = self._pending.take(number, is_pause=is_pause)
        self._weights[number] = sum([entry.weight for entry in snapshot.entries])
        for old in [past for past in self._weights if past <= number - HISTORY]:
            del self._weights[old]
        return snapshot

    def put_back(self, newest: int, oldest_needed: int) -> None:
        """Take back what rounds did not take; forget what they took before round `newest`, as in `forget`."""
        completed = self._log.get(newest)
        if completed is not None and not self._same_learner.isdisjoint(completed.contributors):
            with self._lock:
                self._pending.taken_from_learner(newest, is_pause=completed.is_pause)
        for number in [n for n in self.snapshots if n <= newest]:
            if self._log.took(number, self._rank) is False:
                self._take_back(number)
        self.forget(newest - 1, oldest_needed)

    def forget(self, stands: int, oldest_needed: int) -> None:
        """Forget what the rounds up to `stands` took, which are not formed again; none beyond `oldest_needed`, for
        checkpoints."""
        for number in [n for n in self.snapshots if n <= min(stands, oldest_needed)]:
            del self.snapshots[number]

    def _take_back(self, number: int) -> None:
        with self._lock:
            self._pending.give_back(self.snapshots.pop(number))
        self._weights.pop(number, None)

    def jumped(self, number: int, newest: int) -> None:
        """Adapt to a copy after round `number`, which replaces a replica that had the rounds up to `newest`."""
        for number_sent in sorted(self._weights):
            took = self._log.took(number_sent, self._rank)
            if took or (number_sent <= number and took is None) or (number_sent > max(number, newest)):
                continue  # it counts, or nobody knows any more, or its round is still to come
            if number_sent in self.snapshots and number_sent > number:
                continue  # the round is formed again, from this snapshot
            if number_sent in self.snapshots:
                self._take_back(number_sent)
            else:  # an old leader's round took it, and came to nothing
                with self._lock:
                    self._pending.lose(self._weights.pop(number_sent))
        for old in [past for past in self.snapshots if past <= number]:
            del self.snapshots[old]


class Keeping:
    """The worker's part in checkpoints. It is kept as it is after each round that is *marked*, and `snapshots` for
    later rounds, by round, are not forgotten before. `news` tells the training thread."""

    def __init__(self, pending: Buffer, log: Log, snapshots: Mapping[int, Snapshot], news: Callable[[], None]) -> None:
        self._pending, self._log, self._snapshots, self._news = pending, log, snapshots, news
        self.wanted = 0
        self.kept: Kept | None = None
        self._due: list[int] = []

    def marked(self, number: int, request: int) -> None:
        """Note that round `number` is there, and answers `request` (0: none)."""
        if request:
            self._due.append(number)

    def jumped(self, number: int, marks: Marks) -> None:
        """Adapt to a copy of another replica after round `number`."""
        self._due = [marked for marked, _ in marks if marked == number]

    def oldest(self, newest: int) -> int:
        """Return the newest round up to which snapshots may be forgotten."""
        return min(self._due, default=newest)

    def keep(self, number: int) -> None:
        """Set `kept` to the state of this worker, whose training thread has applied the rounds up to `number`."""
        completed = self._log.get(number)
        known = self._log if completed is None else completed
        self._due = [other for other in self._due if other > number]
        self.kept = replace(
            self._pending.kept(self._snapshots, number),
            best_step=known.step,
            best_options=known.options,
            progress=known.progress,
            settings=known.settings,
            request=known.request,
        )
        self._news()

    def restore(self) -> int:
        assert self.kept is not None, "the training thread says what to go on from"
        kept = self.kept
        more: dict[str, Any] = {"settings": kept.settings, "request": kept.request, "progress": kept.progress}
        self._log.jump(LogState(kept.number, 0, kept.best_step, kept.best_options, **more))
        self._pending.restore(kept)
        return kept.number
