"""How long to wait before a worker counts as silent: links may be slow, and leaders may come to nothing."""

from __future__ import annotations

from collections import deque

from quorate.rounds.terms import Agreed

_SLOWEST = 1e5
"""Bytes per second that a link carries at least, until it is known what it does."""
_REMEMBERED = 8


class Carrying:
    """How long a vector is on its way, as one worker has seen it: that is not silence."""

    def __init__(self, agreed: Agreed) -> None:
        self._agreed = agreed
        self._took = deque[float](maxlen=_REMEMBERED)

    def took(self, seconds: float) -> None:
        """One has arrived."""
        self._took.append(seconds)

    @property
    def seconds(self) -> float:
        """What one more may take: four times the longest of late; a slow link's time while nothing is known."""
        agreed = self._agreed
        if not agreed.is_large:
            return 0.0
        return 4 * max(self._took) if self._took else agreed.size * agreed.vector_bytes / _SLOWEST


class Patience:
    """A member's with its leader."""

    def __init__(self, agreed: Agreed) -> None:
        self._agreed = agreed
        self._carrying = Carrying(agreed)
        self._asked, self._asked_at = 0, 0.0
        self._barren, self._was_led = 0, False
        """Leaders since the newest round, the first left out; and whether there was one."""

    def asked(self, number: int, now: float) -> None:
        """The leader has asked for round `number`."""
        self._asked, self._asked_at = number, now

    def got(self, number: int, now: float) -> None:
        """The result of round `number` is here."""
        if number == self._asked:
            self._carrying.took(now - self._asked_at)

    def new_round(self) -> None:
        """Rounds go on."""
        self._barren, self._was_led = 0, False

    def new_leader(self) -> None:
        """Another one leads, or tries to."""
        self._barren += self._was_led
        self._was_led = True

    @property
    def seconds(self) -> float:
        """Without a word from the leader, after which it is asked whether it is there, and then replaced.

        Twice as long with each leader that brought no round: those who would lead must not chase each other.
        """
        seconds = (self._agreed.grace + self._carrying.seconds) * 2.0 ** min(self._barren, 8)
        return min(seconds, max(self._agreed.patience, self._agreed.grace))
