"""Who looks on at the rounds of one worker: rows of the records, comparisons of replicas, what is not finite."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from quorate.core.contracts import Wire
from quorate.core.vectors import Flat
from quorate.means.headers import MEASURED, SQUARE, WEIGHT, bad_in, numbers_of, put_bad
from quorate.observe.digests import Digests, digest_of
from quorate.observe.exclusions import ExclusionWatch
from quorate.observe.finite import Finite
from quorate.observe.gradient_noise import NoiseWatch
from quorate.observe.local_changes import LocalChanges
from quorate.observe.losses import Losses
from quorate.observe.step_times import StepTimer
from quorate.records.round_rows import Applied, Gave, RoundRow
from quorate.records.tape import Look, Position
from quorate.rounds.log import Round
from quorate.wire.survivors import workers_of

_SAY_EVERY = 0.25
"""Seconds between two words of the writer on how far it has come."""
_LOOK_EVERY = 256
"""Rows that the others hold before they look how far that is."""
_MOST_HELD = 4096


class RoundRows:
    """`round` rows: written by the first worker that is left, and by the next one where that dies.

    Of what this worker applies, rows are held as long as the one that writes them may not have written them.

    Where the writer stands still for more than some thousand rounds, the others write as well: readers take one row of
    each number. Cost: for the writer one word with the board every quarter of a second, for the others one for every
    256 rounds.
    """

    def __init__(self, wire: Wire, timer: StepTimer, losses: Losses, *, has_window: bool) -> None:
        self._timer, self._losses, self._has_window = timer, losses, has_window
        self._board, self._key = wire.board, f"{wire.name}/rows"
        self._held: list[dict[str, Any]] = []
        self._newest = (0, 0)
        """The number and the term of the newest round that was held here."""
        self._said_at: float | None = None
        self._looks_at = _LOOK_EVERY

    def applied(self, one: Round) -> None:
        """This worker is about to apply `one`."""
        if self._timer.recorder is None:
            return
        row = {
            "number": one.number,
            "time": self._timer.clock.now(),
            "weight": one.weight,
            "live": one.live,
            "contributors": {str(rank): given for rank, given in one.contributors.items()},
            "optimizer": self._timer.name,
            "quorum": one.quorum,
            "times": {str(rank): times for rank, times in one.times.items()},
            "told": {str(rank): told for rank, told in one.measures.items()} or None,
            "alive": one.alive,
            "progress": one.progress,
            "window": one.window if self._has_window or one.window else None,
            "hosts": one.hosts or None,
            "settles": one.settles or None,
            "is_last": one.is_last or None,
            "digest": None if one.sum is None else f"{digest_of(one.sum.parts):016x}",
            **({} if one.why is None else {"settings": one.settings, "why": one.why}),
        }
        self._hold(row, one.term)
        self.look()

    def _hold(self, row: dict[str, Any], term: int) -> None:
        while self._held and self._held[-1]["number"] >= row["number"]:
            self._held.pop()  # it came to nothing
        self._newest = (row["number"], term)
        self._held.append({**row, "term": term})

    def look(self) -> None:
        """Write what is held, if that is for this worker to do by now."""
        if not self._held:
            return
        if self._losses.is_first:
            if self._said_at is None:
                self._forget_written()  # by the one before
            self._write()
        elif len(self._held) >= self._looks_at:
            self._forget_written()
            if len(self._held) >= _MOST_HELD:
                self._write()
            self._looks_at = len(self._held) + _LOOK_EVERY

    @property
    def held(self) -> list[dict[str, Any]]:
        """What goes with a copy of this replica: among it are the rows of the rounds that the other one misses."""
        return list(self._held)

    def jumped(self, rows: Iterable[dict[str, Any]]) -> None:
        """This replica is a copy of another one, which held these."""
        if self._timer.recorder is None:
            return
        number, term = self._newest
        for row in rows:
            if row["number"] > number or row["term"] > term:
                self._hold({**row, "time": self._timer.clock.now()}, row["term"])
        self.look()

    def _write(self) -> None:
        recorder, now = self._timer.recorder, self._timer.clock.now()
        assert recorder is not None
        held, self._held = self._held, []
        for row in held:
            recorder.write(RoundRow(**{name: value for name, value in row.items() if name != "term"}))
        if self._losses.is_first and (self._said_at is None or now - self._said_at >= _SAY_EVERY):
            self._said_at = now
            self._board.set(self._key, json.dumps(self._newest).encode())

    def _forget_written(self) -> None:
        """Of a round that was formed in a later term than the writer knew of, it has written another one's row."""
        said = self._board.get(self._key)
        if said is not None:
            number, term = json.loads(said)
            self._held = [row for row in self._held if row["number"] > number or row["term"] > term]


class RoundWatch:
    """Sees what this worker gives to rounds, and every round that it applies; it changes neither round nor replica.

    `digests` and `changes` compare replicas after each round; None where replicas differ between rounds.
    """

    def __init__(
        self,
        wire: Wire,
        timer: StepTimer,
        losses: Losses,
        digests: Digests | None,
        finite: Finite,
        *,
        changes: LocalChanges | None = None,
        noise: NoiseWatch | None = None,
        has_window: bool = False,
        tolerates_death: bool = False,
        exclusions: ExclusionWatch | None = None,
        pieces: int = 1,
    ) -> None:
        """`pieces`: over how many workers each replica is spread. `exclusions` where a rule combines rounds. `noise`
        measures what rounds are formed of; None where it is no gradients."""
        self._pieces, self._changes = pieces, changes
        self._coming: tuple[int, int] | None = None
        """Number and term of the round that is being applied; None for a replica that is copied."""
        self._tolerates_death = tolerates_death
        self._wire, self._timer, self._losses, self._digests, self._finite = wire, timer, losses, digests, finite
        self._noise, self._exclusions = noise, exclusions
        self.rows = RoundRows(wire, timer, losses, has_window=has_window)

    def is_about_to_give(self) -> None:
        """What has led to it is in the records, should this worker die."""
        if self._timer.recorder is not None and self._tolerates_death:
            self._timer.recorder.flush()

    def sees_finite(self, grads: Sequence[Tensor]) -> bool:
        """Whether they may go into this worker's momentum: else all that it gives later would not be finite."""
        return not self._finite.looks or self._finite.sees(grads)

    def gives(self, vector: Flat, grads: Sequence[Tensor | None]) -> None:
        """A contribution is about to travel: note in its header whether the numbers are finite."""
        finite = self._finite
        if finite.looks and not finite.sees(vector.parts):
            finite.note([s.name for s in vector.layout.segments], grads)
            put_bad(vector.header, self._wire.rank, self._wire.max_size)

    def measures(self, gradient: Flat, weight: float) -> None:
        """A gradient that counts `weight` is about to travel: note in its header how large it is."""
        if self._noise is not None:
            header = gradient.header
            header[SQUARE], header[MEASURED] = self._noise.take_of(numbers_of(gradient), weight)

    def measured(self, one: Round, sums: Flat, smoothing: float) -> None:
        """It is about to be applied; of the noise of gradients, `smoothing` is left in what was given."""
        if self._noise is not None and (measured := float(sums.header[MEASURED])) > 0:
            weight, square = float(sums.header[WEIGHT]), float(sums.header[SQUARE])
            gradients = sum(count for given in one.contributors.values() for _, count in given)
            self._noise.saw_sum(square, measured, weight, gradients, numbers_of(sums), smoothing)

    def leaves_out(self, one: Round, sums: Flat, *, is_scaled: bool) -> bool:
        """Whether its update is to be left out, as its `sums` are not finite. Raises as `Finite.leaves_out`."""
        return self._finite.leaves_out(bad_in(sums, self._wire.max_size), one.number, is_scaled=is_scaled)

    def comes(self, one: Round) -> None:
        """It is about to be applied: whose gradients are in it, and how old, is told to the records."""
        self._coming = one.number, one.term
        timer = self._timer
        if self._changes is not None and one.measures:
            self._changes.compare_round(one.number, one.measures)
        timer.contributors = len(one.contributors)
        mine = one.contributors.get(self._wire.rank)
        if mine:
            timer.staleness = max(staleness for staleness, _ in mine)
        self._losses.look()
        self._losses.joined(workers_of(one.joined, self._pieces), one.number)
        self.rows.applied(one)
        if self._exclusions is not None and (one.sum is not None or one.excluded):
            self._exclusions.saw_round(one.excluded)
        if self._exclusions is not None and one.is_last:
            self._exclusions.tell()

    def looked(self, look: Look, number: int, source: int | None = None) -> None:
        """This worker has applied rounds up to `number` in a look for them, or has jumped there: see `Applied`."""
        if self._timer.recorder is not None:
            name, (rests, looks), is_copy = self._timer.name, look, None if source is None else True
            row = Applied(optimizer=name, rests=rests, look=looks, round=number, is_copy=is_copy, source=source)
            self._timer.recorder.hold(row)

    def gave(self, at: Position, to: int) -> None:
        """This worker has given a copy to one that joins: see `Gave`."""
        if self._timer.recorder is not None:
            self._timer.recorder.write(Gave(optimizer=self._timer.name, to=to, **at._asdict()))

    def applied(self, number: int) -> None:
        """The replica is as after round `number`. Raises as `Digests.look`."""
        if self._digests is None:
            self._timer.rounds += 1  # local steps are none
        else:
            self._digests.look(number)
        coming, self._coming = self._coming, None
        if self._changes is not None and coming is not None and coming[0] == number:
            self._changes.round_applied(*coming)

    def take_words(self) -> Sequence[Any]:
        """What goes with this worker's next contribution: see `LocalChanges.take_words`."""
        return () if self._changes is None else self._changes.take_words()
