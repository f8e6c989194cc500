"""Settings that change from one round to the next: asked for by any worker, decided by the one that leads.

Who asks says after which round it asks (`request`). The newest such request is answered by the next round that is
formed, whose result carries what is in force from the round after it on; so the change is a part of the log, and comes
with it to a new leader, into a copy of a replica, and into a checkpoint. Of requests made after the same round, the one
that comes first is answered; one older than what is in force comes to nothing. A worker says its request with all that
it says to whoever leads, until it is answered.
"""

from __future__ import annotations

from typing import Any

from quorate.rounds.log import Log
from quorate.rounds.terms import Agreed, amended


class Changes:
    """What a leader knows of them."""

    def __init__(self, agreed: Agreed, log: Log) -> None:
        self._start, self._log = agreed, log
        self._wish: dict[str, Any] | None = None

    @property
    def agreed(self) -> Agreed:
        """In force after the newest round of the log."""
        return amended(self._start, self._log.settings)

    def heard(self, header: dict[str, Any]) -> None:
        """What a worker says, perhaps with a request."""
        wish = header.get("wishes")
        newest = self._log.request if self._wish is None else self._wish["request"]
        if wish is not None and wish["request"] > newest:
            self._wish = wish

    def answered(self) -> dict[str, Any]:
        """What the round that is being formed says of them, as fields of `Round`."""
        wish, self._wish = self._wish, None
        if wish is None or wish["request"] <= self._log.request:
            return {"settings": self._log.settings, "request": self._log.request, "why": None}
        settings = {**self._log.settings, **wish["settings"]}
        return {"settings": settings, "request": wish["request"], "why": wish["why"]}
