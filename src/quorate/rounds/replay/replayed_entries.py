"""Copies of replicas for workers that join, in a replay: from whom each was, and as that was then.

Unlike other copies such a one has what is the giver's own as well: where it was in the data, and what its script keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError
from quorate.records.tape import Look, OptimizerTape, Position
from quorate.rounds.entering import Replica


class ReplayedEntries:
    """Those of one worker, given and taken."""

    def __init__(self, wire: Wire, tape: OptimizerTape, replica: Replica) -> None:
        self._wire, self._replica = wire, replica
        self._taken = {look: (number, source) for look, number, source in tape.entries_of(wire.rank)}
        self._given: list[tuple[Position, int]] = []
        """When, and to whom; the next one first."""
        for to in tape.joined:
            for _, number, source in tape.entries_of(to):
                if source == wire.rank:
                    self._given.append((_when(tape, source, to, number), to))
        self._given.sort()

    def take(self, look: Look) -> Mapping[str, Any] | None:
        """Become the replica that this worker, which joins, became in that look; what came with it."""
        if look not in self._taken:
            return None
        number, source = self._taken.pop(look)
        _, message = self._wire.receive(source, f"entry {number}").wait()
        header = {**message.header, "source": source}
        self._replica.adopt(header["replica"], message.tensors)
        return header

    @property
    def are_left(self) -> bool:
        """Whether there are copies to give."""
        return bool(self._given)

    def give(self, now: Position | None, about: Callable[[], Mapping[str, Any]]) -> None:
        """Give those copies that were given up to `now` (None: all); `about` is what goes with them."""
        while self._given and (now is None or self._given[0][0] <= now):
            at, to = self._given.pop(0)
            header, tensors = self._replica.capture(is_whole=True)
            message = Message(tuple(tensors), {"replica": header, **about()}, shared=True)
            self._wire.send(message, to, f"entry {at.round}")


def _when(tape: OptimizerTape, source: int, to: int, number: int) -> Position:
    found = [at for at, other in tape.given.get(source, ()) if other == to and at.round == number]
    if not found:
        raise ConfigurationError(
            f"rank {to} joined with a copy from rank {source}, and the records do not say when that rank sent it; such "
            "a run cannot be replayed"
        )
    return min(found)
