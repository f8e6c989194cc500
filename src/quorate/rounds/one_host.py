"""Placeholders for the parts of `hosts`, where all workers are on one host: there the leader forms every sum."""

from __future__ import annotations

import math
from typing import Any

from quorate.core.vectors import Flat
from quorate.rounds.coding import Codes
from quorate.rounds.log import Round


class NoAttempts:
    """In place of `hosts.attempts.Attempts`: no round spans hosts."""

    slack = seconds = 0.0

    def _no(self, *_: object) -> bool:
        return False

    def _nothing(self, *_: object) -> None:
        return

    def are_needed(self, *_: object) -> bool:
        """Return True: a round is formed as soon as all have answered."""
        return True

    def order(self, *_: object) -> list[list[int]]:
        """Return no hosts: contributions are added in order of rank."""
        return []

    span = decide = is_through = _no
    whole = has_piece = _nothing


class NoVotes:
    """In place of `hosts.votes.Votes`: a round takes effect at once."""

    on: Round | None = None
    acknowledged, are_needed, voters = 0, False, list[int]()

    def of_next(self, *_: object) -> list[int]:
        """Return no voters."""
        return []

    def _nothing(self, *_: object) -> None:
        return

    begin = holds = have_died = ended = _nothing


class NoExchanges:
    """In place of `hosts.between_hosts.BetweenHosts`: no hosts form a sum."""

    asks_at = math.inf
    codes: Codes | None = None

    def _nothing(self, *_: object) -> Any:
        return None

    def received(self, *_: object) -> tuple[int, Flat] | None:
        """Return no sum."""
        return None

    next = ask = clear = forget = has = pass_on = announced = _nothing
