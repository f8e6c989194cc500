"""What a member does with the rounds that it is told of: it logs them, or holds them until they are in force."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.core.vectors import Flat
from quorate.rounds.gathering import Patience
from quorate.rounds.hosts.between_hosts import BetweenHosts
from quorate.rounds.hosts.exchange import Send
from quorate.rounds.hosts.votes import Held
from quorate.rounds.log import Log, Round, round_from
from quorate.rounds.terms import Agreed

KINDS = ("round", "hold", "force")


class Incoming:
    """Those of one member; `accept` is called with each that is in force, and what is acknowledged."""

    def __init__(
        self,
        agreed: Agreed,
        log: Log,
        between: BetweenHosts,
        patience: Patience,
        send: Send,
        accept: Callable[[Round, int], None],
    ) -> None:
        self._agreed, self._log, self._between, self._patience = agreed, log, between, patience
        self._send, self._accept = send, accept
        self.held = Held()
        self._in_force = 0
        """The newest round that this term's leader has said to be."""

    def new_leader(self) -> None:
        """What the one before it has said counts no more; what is held stays so."""
        self._in_force = 0

    def received(self, header: dict[str, Any], vector: Flat | None, now: float) -> None:
        """A message of one of `KINDS`."""
        kind, number = header["kind"], header["number"]
        if kind == "hold":
            self._hold_anew(number, header["term"], now)
        elif kind == "force":
            self._is_in_force(number, header["term"])
        elif header["attempt"]:
            self._between.told(header, now)
        else:
            is_here = self._round(round_from(header, vector), header)
            if is_here if header["votes"] else (self._agreed.is_large and vector is not None):
                self._has(number, now)
        self.take_what_is_there(now)

    def take_what_is_there(self, now: float) -> None:
        """Of what the hosts have formed."""
        while (found := self._between.next(self._log.newest)) is not None:
            one, header = found
            self._between.has(one)
            if self._round(one, header):
                self._has(one.number, now)

    def hold(self, one: Round, acknowledged: int, term: int) -> None:
        """The leader's own: it may be in force from now on."""
        self.held.take(one, acknowledged, term)
        self._between.has(one)
        self._send(None, {"kind": "got", "number": one.number}, None)

    def logged(self, one: Round) -> None:
        """A round is."""
        self.held.logged(one.number)
        self._between.has(one)

    def _has(self, number: int, now: float) -> None:
        self._send(None, {"kind": "got", "number": number}, None)
        self._patience.got(number, now)

    def _round(self, one: Round, header: dict[str, Any]) -> bool:
        """Log it or hold it; whether it is here then."""
        if one.number <= self._log.newest:
            return True
        if one.number > self._log.newest + 1 or header["after"] != self._log.term:
            self._send(None, {"kind": "behind"}, None)
            return False
        if header["votes"] and one.number > self._in_force:
            self.held.take(one, header["acknowledged"], header["term"])
        else:
            self._accept(one, header["acknowledged"])
        return True

    def _hold_anew(self, number: int, term: int, now: float) -> None:
        held = self.held
        if held.round is not None and held.round.number == number:
            held.take(held.round, held.acknowledged, term)
            self._has(number, now)
        else:
            self._send(None, {"kind": "behind"}, None)

    def _is_in_force(self, number: int, term: int) -> None:
        self._in_force = max(self._in_force, number)
        if self.held.round is not None and self.held.is_of(number, term):
            self._accept(self.held.round, self.held.acknowledged)
