"""A member's part in checkpoints: rounds that are to be kept, what is kept of one, and going on from there.

A round is *marked* when its leader was asked for one to be kept. Every worker is then kept as it is after that round:
with what it has contributed and no round up to there has taken in. What it gave to rounds behind a marked one is so not
forgotten before it has been kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from quorate.rounds.log import Log, Marks
from quorate.rounds.pending import Kept, PendingGradients, Snapshot


class Keeping:
    """One member's. `snapshots` is what it gave, by round; `news` tells the training thread."""

    def __init__(
        self, pending: PendingGradients, log: Log, snapshots: Mapping[int, Snapshot], news: Callable[[], None]
    ) -> None:
        self._pending, self._log, self._snapshots, self._news = pending, log, snapshots, news
        self.wanted = 0
        """The newest request of this worker."""
        self.kept: Kept | None = None
        """For the training thread, or from it."""
        self._due: list[int] = []

    def marked(self, number: int, request: int) -> None:
        """Round `number` is there, and answers `request` (0: none)."""
        if request:
            self._due.append(number)

    def jumped(self, number: int, marks: Marks) -> None:
        """This replica is a copy of another one, as it was after round `number`."""
        self._due = [marked for marked, _ in marks if marked == number]

    def oldest(self, newest: int) -> int:
        """The round beyond which nothing that was given must be forgotten yet."""
        return min(self._due, default=newest)

    def keep(self, number: int) -> None:
        """Let `kept` be what is kept of this worker, whose training thread has applied the rounds up to `number`."""
        one = self._log.get(number)
        known = self._log if one is None else one
        self._due = [other for other in self._due if other > number]
        self.kept = replace(
            self._pending.kept(self._snapshots, number),
            best_step=known.step,
            best_options=known.options,
            settings=known.settings,
            request=known.request,
        )
        self._news()

    def restore(self) -> int:
        """Be what `kept` says, before anything has happened here; returns the number of the round."""
        assert self.kept is not None, "the training thread says what to go on from"
        kept = self.kept
        self._log.jump(
            kept.number, 0, kept.best_step, kept.best_options, (), (), settings=kept.settings, request=kept.request
        )
        self._pending.restore(kept)
        return kept.number
