"""Observers of the rounds of one worker: rows of the records, comparisons of replicas, numbers that are not finite."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from quorate.core.contracts import Wire
from quorate.core.means import Measured, WorkerMeasures
from quorate.core.vectors import Flat, header_in
from quorate.means.headers import MEASURED, SQUARE, WEIGHT, bad_in, numbers_of, put_bad
from quorate.observe.digests import Digests, digest_of
from quorate.observe.exclusions import ExclusionWatch
from quorate.observe.finite import Finite
from quorate.observe.gradient_noise import NoiseWatch, next_span
from quorate.observe.local_changes import LocalChanges
from quorate.observe.losses import Losses
from quorate.observe.step_times import StepTimer
from quorate.records.rows import Applied, Gave, RoundRow
from quorate.records.tape import Look, Position
from quorate.replica.replica import Replica
from quorate.rounds.log import Round
from quorate.wire.survivors import workers_of

_REPORT_EVERY = 0.25
"""Seconds after which the writer reports its newest row again."""
_LOOK_EVERY = 256
"""Rows that the other workers hold before they read that report."""
_MOST_HELD = 4096
_END = 1 << 13
"""Numbers at the beginning and at the end of each part of a round that its digest is made of: some 20 µs a part."""


class RoundWatch:
    """Observes the contributions of this worker and the rounds that it applies; it changes neither round nor replica.

    `digests` and `changes` compare replicas after each round; None if replicas differ between rounds.
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
        """`pieces` is the number of workers of each replica, `exclusions` None unless an aggregation rule combines
        contributions, `noise` None unless these are gradients."""
        self._pieces, self._changes = pieces, changes
        self._current: tuple[int, int] | None = None
        """Number and term of the round that is being applied; otherwise None, also while a replica is copied."""
        self._tolerates_death = tolerates_death
        self._wire, self._timer, self._losses, self._digests, self._finite = wire, timer, losses, digests, finite
        self._noise, self._exclusions = noise, exclusions
        self._number = self._noise_at = 0
        """The newest round that was noted, and the one from which on gradients are measured again."""
        self.rows = RoundRows(wire, timer, losses, has_window=has_window)

    def divided_by(self, divisor: int) -> None:
        """Note the number by which contributions are divided."""
        self.rows.share = divisor / self._wire.size
        if self._noise is not None:
            self._noise.divisor = divisor

    def flush_records(self) -> None:
        """Flush the records before a contribution travels, in a run that outlives the death of this worker."""
        if self._timer.recorder is not None and self._tolerates_death:
            self._timer.recorder.flush()

    @property
    def looks(self) -> bool:
        """Whether gradients are checked."""
        return self._finite.looks

    def are_finite(self, grads: Sequence[Tensor]) -> bool:
        """Return whether `grads` may enter this worker's momentum: they are finite, or nothing watches that."""
        return not self._finite.looks or self._finite.sees(grads)

    def note_if_not_finite(self, vector: Flat, grads: Sequence[Tensor | None]) -> None:
        """Note in the header of a contribution, before it travels, that its numbers are not finite."""
        finite = self._finite
        if finite.looks and not finite.sees(vector.parts):
            finite.note([s.name for s in vector.layout.segments], grads)
            put_bad(header_in(vector), self._wire.rank, self._wire.max_size)

    def note_rows_not_finite(self, vector: Flat, replica: Replica, rows: Sequence[Tensor]) -> None:
        """Note the same of the `rows` of sparse tables that go with a contribution."""
        if self._finite.looks and not self._finite.sees(rows):
            self._finite.note(replica.all_names, replica.all_gradients)
            put_bad(header_in(vector), self._wire.rank, self._wire.max_size)

    def measure_gradient(self, gradient: Flat, weight: float) -> None:
        """Note the squared norm of a gradient of `weight` in its header, before it travels."""
        if self._noise is not None and self._number >= self._noise_at:
            header = header_in(gradient)
            header[SQUARE], header[MEASURED] = self._noise.take_of(numbers_of(gradient), weight)
            self._noise_at = next_span(self._number)

    def measure_noise(self, round: Round, sums: Flat, smoothing: float) -> None:
        """Measure the noise of gradients by the `sums` of `round`; momentum has left a share `smoothing` of it."""
        if self._noise is not None and (measured := float(header_in(sums)[MEASURED])) > 0:
            weight, square = float(header_in(sums)[WEIGHT]), float(header_in(sums)[SQUARE])
            gradients = sum(count for pairs in round.contributors.values() for _, count in pairs)
            self._noise.saw_sum(square, measured, weight, gradients, numbers_of(sums), smoothing)

    def leaves_out(self, round: Round, sums: Flat, *, is_scaled: bool) -> bool:
        """Return whether no update follows `round`, since its `sums` are not finite. Raises as `Finite.leaves_out`."""
        return self._finite.leaves_out(bad_in(sums, self._wire.max_size), round.number, is_scaled=is_scaled)

    def note_round(self, round: Round) -> None:
        """Record `round`, which is about to be applied. Raises as `LocalChanges.compare_round`."""
        self._current, self._number = (round.number, round.term), round.number
        timer = self._timer
        if self._changes is not None and round.measures:
            self._changes.compare_round(round.number, round.measures)
        timer.contributors = len(round.contributors)
        own_contributions = round.contributors.get(self._wire.rank)
        if own_contributions:
            timer.staleness = max([staleness for staleness, _ in own_contributions])
        if self._tolerates_death:
            self._losses.look()
        if round.joined:
            self._losses.joined(workers_of(round.joined, self._pieces), round.number)
        self.rows.applied(round)
        if self._exclusions is not None and (round.sum is not None or round.excluded):
            self._exclusions.saw_round(round.excluded)
        if self._exclusions is not None and round.is_last:
            self._exclusions.tell()

    def looked(self, look: Look, number: int, source: int | None = None) -> None:
        """Record that this worker has applied rounds up to `number`, or has copied a replica there: see `Applied`."""
        if self._timer.recorder is not None:
            name, (pauses, looks), is_copy = self._timer.name, look, None if source is None else True
            row = Applied(optimizer=name, rests=pauses, look=looks, round=number, is_copy=is_copy, source=source)
            self._timer.recorder.hold(row)

    def gave(self, at: Position, to: int) -> None:
        """Record that this worker has sent a copy of its replica to a newcomer: see `Gave`."""
        if self._timer.recorder is not None:
            self._timer.recorder.write(Gave(optimizer=self._timer.name, to=to, **at._asdict()))

    def applied(self, number: int) -> None:
        """Compare the replica after round `number`. Raises as `Digests.look`."""
        if self._digests is None:
            self._timer.rounds += 1  # local steps are not counted as rounds
        elif (every := self._digests.every) and number % every == 0:
            self._digests.look(number)
        current, self._current = self._current, None
        changes = self._changes
        if changes is not None and number >= changes.round_due and current is not None and current[0] == number:
            changes.round_applied(*current)

    def take_words(self, version: int) -> Sequence[Any]:
        """Return the checksums for this worker's next contribution: see `LocalChanges.take_words`."""
        return () if self._changes is None else self._changes.take_words(version)


class RoundRows:
    """`round` rows: the surviving worker of the lowest rank writes them.

    It writes them every quarter of a second, before it reports to the others that it has. Every other worker holds the
    rows of the rounds that it applies until then, in case the writer dies.
    If the writer has written nothing for 4096 rounds, the others write as well: readers take one row of each
    number. Cost: one access to the board every quarter of a second for the writer, one every 256 rounds for the others.
    """

    def __init__(self, wire: Wire, timer: StepTimer, losses: Losses, *, has_window: bool) -> None:
        self._timer, self._losses, self._has_window = timer, losses, has_window
        self._board, self._key = wire.board, f"{wire.name}/rows"
        self._held: list[dict[str, Any]] = []
        self._newest = (0, 0)
        """Number and term of the newest round that was held here."""
        self._reported_at: float | None = None
        self._next_look = _LOOK_EVERY
        self.share = 1.0
        """A factor of a sum in its digest: that is of contributions divided by the number of workers."""

    def applied(self, round: Round) -> None:
        """Hold a row of `round`, which this worker is about to apply."""
        if self._timer.recorder is None:
            return
        row = {
            "number": round.number,
            "time": self._timer.clock.now(),
            "weight": round.weight,
            "live": round.live,
            "contributors": {str(rank): pairs for rank, pairs in round.contributors.items()},
            "optimizer": self._timer.name,
            "quorum": round.quorum,
            "times": {str(rank): times for rank, times in round.times.items()},
            "told": {str(rank): measures for rank, measures in round.measures.items()} or None,
            "alive": round.alive,
            "progress": round.progress,
            "window": round.window if self._has_window or round.window else None,
            "hosts": round.hosts or None,
            "settles": round.is_pause or None,
            "is_last": round.is_last or None,
            "digest": None if round.sum is None else f"{digest_of(_ends_of(round.sum, self.share)):016x}",
            **({} if round.why is None else {"settings": round.settings, "why": round.why}),
        }
        self._hold(row, round.term)
        self.look()

    def _hold(self, row: dict[str, Any], term: int) -> None:
        while self._held and self._held[-1]["number"] >= row["number"]:
            self._held.pop()  # another round of this number replaced it
        self._newest = (row["number"], term)
        self._held.append({**row, "term": term})

    def look(self) -> None:
        """Write the held rows if this worker is the writer now; forget those that the writer has written."""
        if not self._held:
            return
        if self._losses.is_first:
            if self._reported_at is None:
                self._forget_written()  # the writer before may have written some
            self._write()
        elif len(self._held) >= self._next_look:
            self._forget_written()
            if len(self._held) >= _MOST_HELD:
                self._write()
            self._next_look = len(self._held) + _LOOK_EVERY

    @property
    def held(self) -> list[dict[str, Any]]:
        """Rows that go with a copy of this replica: those of the rounds that its receiver misses are among them."""
        return list(self._held)

    def jumped(self, rows: Iterable[dict[str, Any]]) -> None:
        """Hold those of `rows` that this worker misses; its replica is a copy of one whose worker held them."""
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
        is_due = self._reported_at is None or now - self._reported_at >= _REPORT_EVERY
        for row in held:
            (recorder.write if is_due else recorder.hold)(
                RoundRow(**{name: value for name, value in row.items() if name != "term"})
            )
        if self._losses.is_first and is_due:
            self._reported_at = now
            self._board.set(self._key, json.dumps(self._newest).encode())

    def _forget_written(self) -> None:
        """Forget rows up to the writer's newest one, but not of a later term: for these it wrote other rounds."""
        report = self._board.get(self._key)
        if report is not None:
            number, term = json.loads(report)
            self._held = [row for row in self._held if row["number"] > number or row["term"] > term]


def _ends_of(sums: Flat, share: float) -> list[Tensor]:
    """Return the beginning and the end of each part, times `share`, with its header.

    A round that differs does so nearly everywhere.
    """
    ends = [end for x in sums.parts for end in ((x,) if x.numel() <= 2 * _END else (x[:_END], x[-_END:]))]
    if share != 1.0:
        last = ends[-1]
        ends = [end * share for end in ends]
        header = min(sums.layout.header, last.numel())
        ends[-1][last.numel() - header :] = last[last.numel() - header :]
    return ends


def measures_of(timer: StepTimer, norm: float, *, has_called: bool, is_scaled: bool) -> list[float | None]:
    """Return the measures of a contribution of this norm: see `core.means.WorkerMeasures`."""
    waited = timer.waited_before if has_called else None
    return [timer.work, waited, None if is_scaled else timer.loss, norm**2]


def payload_of(values: list[float | None] | None, checksums: Sequence[Any], rows: int | None = None) -> Any:
    """Return the payload of a contribution: its measured values, the checksums of `LocalChanges`, if any, and the
    number of its rows of sparse tables."""
    if rows is not None:
        return {"signed": checksums, "measured": values, "rows": rows}
    return {"signed": checksums, "measured": values} if checksums else values


def _values_in(payload: Any) -> Sequence[Any]:
    values: Sequence[Any] = payload["measured"] if isinstance(payload, dict) else payload
    return values


def measured_in(round: Round, square: float, smoothing: float) -> Measured:
    """Return the measures that workers have sent with `round`, whose sum has the squared norm `square`."""
    gradients = sum(count for pairs in round.contributors.values() for _, count in pairs)
    measures = [(rank, WorkerMeasures(*_values_in(x))) for rank, own in round.measures.items() for x in own]
    return Measured(round.number, round.quorum, gradients, measures, square, smoothing)
