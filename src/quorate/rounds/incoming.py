"""The rounds that a member receives: it logs them, or holds them until they are in force."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorate.core.fields import Header
from quorate.core.vectors import Flat
from quorate.rounds.gathering import Patience
from quorate.rounds.holdings import Announcement
from quorate.rounds.hosts.between_hosts import BetweenHosts
from quorate.rounds.hosts.exchange import Send
from quorate.rounds.log import Log, Round
from quorate.rounds.messages import Envelope, RoundSignal, Signal
from quorate.rounds.one_host import NoExchanges
from quorate.rounds.terms import Agreed

KINDS = ("round", "hold", "force")


class Held:
    """The round that a member holds, which may be in force."""

    def __init__(self) -> None:
        self.round: Round | None = None
        self.acknowledged = 0
        self.ballot = -1

    def take(self, formed: Round, acknowledged: int, ballot: int) -> None:
        self.round, self.acknowledged, self.ballot = formed, acknowledged, ballot

    def logged(self, number: int) -> None:
        """Note that the rounds up to `number` are in force."""
        if self.round is not None and self.round.number <= number:
            self.round, self.ballot = None, -1

    def after(self, newest: int) -> Round | None:
        return self.round if self.round is not None and self.round.number == newest + 1 else None

    @property
    def about(self) -> list[int] | None:
        """The round's number, the term it was formed in, and the ballot; None where nothing is held."""
        return None if self.round is None else [self.round.number, self.round.term, self.ballot]


def knows(envelope: Envelope, held: Sequence[int] | None) -> tuple[int, int, int]:
    """Return the order of members by knowledge: the term and the number of the newest round, then the ballot held. A
    round of a later leader is newer, whatever its number. `held`: see `Held.about`."""
    ballot = held[2] if held is not None and held[0] == envelope.logged + 1 else -1
    return envelope.log_term, envelope.logged, ballot


class Incoming:
    """The rounds that come to a member; `accept` is called with each in force, and the newest that all have."""

    def __init__(
        self,
        agreed: Agreed,
        log: Log,
        between: BetweenHosts | NoExchanges,
        patience: Patience,
        send: Send,
        accept: Callable[[Round, int], None],
    ) -> None:
        self._agreed, self._log, self._between, self._patience = agreed, log, between, patience
        self._send, self._accept = send, accept
        self.held = Held()
        self._in_force = 0  # the newest round that this term's leader has said to be in force

    def new_leader(self) -> None:
        """Forget what the previous leader has said; a held round stays."""
        self._in_force = 0

    def received(self, header: Header, term: int, vector: Flat | None, now: float) -> None:
        """Take in a message of one of `KINDS`."""
        if header["kind"] != "round":
            signal = RoundSignal.read(header)
            (self._hold_anew if signal.kind == "hold" else self._is_in_force)(signal.number, term, now)
        elif (announcement := Announcement.read(header, vector)).attempt:
            self._between.announced(announcement, now)
        else:
            is_here = self._take(announcement, term)
            if is_here if announcement.votes else (self._agreed.is_large and vector is not None):
                self._has(announcement.round.number, now)
        self.take_formed(now, term)

    def take_formed(self, now: float, term: int) -> None:
        """Take in the rounds whose sums the hosts have formed."""
        while (announcement := self._between.next(self._log.newest)) is not None:
            self._between.has(announcement.round)
            if self._take(announcement, term):
                self._has(announcement.round.number, now)

    def hold(self, formed: Round, acknowledged: int, term: int) -> None:
        """Hold the leader's own round, which may be in force from now on."""
        self.held.take(formed, acknowledged, term)
        self._between.has(formed)
        self._send(None, RoundSignal("got", formed.number).header(), None)

    def logged(self, formed: Round) -> None:
        """Note that a round is logged."""
        self.held.logged(formed.number)
        self._between.has(formed)

    def _has(self, number: int, now: float) -> None:
        self._send(None, RoundSignal("got", number).header(), None)
        self._patience.got(number, now)

    def _take(self, announcement: Announcement, term: int) -> bool:
        formed = announcement.round
        if formed.number <= self._log.newest:
            return True
        if formed.number > self._log.newest + 1 or announcement.after != self._log.term:
            self._send(None, Signal("behind").header(), None)
            return False
        if announcement.votes and formed.number > self._in_force:
            self.held.take(formed, announcement.acknowledged, term)
        else:
            self._accept(formed, announcement.acknowledged)
        return True

    def _hold_anew(self, number: int, term: int, now: float) -> None:
        held = self.held
        if held.round is not None and held.round.number == number:
            held.take(held.round, held.acknowledged, term)
            self._has(number, now)
        else:
            self._send(None, Signal("behind").header(), None)

    def _is_in_force(self, number: int, term: int, now: float) -> None:
        self._in_force = max(self._in_force, number)
        held = self.held
        if held.round is not None and (held.round.number, held.ballot) == (number, term):
            self._accept(held.round, held.acknowledged)
