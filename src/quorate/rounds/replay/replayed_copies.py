"""Copies of replicas in a replay: who went on from another one, as it had been silent, does so where it did.

All replicas are the same after a round, as far as a copy goes, so that any worker that applied the round may give it:
the one of the lowest rank does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError
from quorate.records.tape import Look, OptimizerTape
from quorate.rounds.entering import Replica


class ReplayedCopies:
    """Those of one worker, given and taken."""

    def __init__(self, wire: Wire, tape: OptimizerTape, replica: Replica) -> None:
        self._wire, self._replica = wire, replica
        self._taken = dict(_copies_of(tape, wire.rank))
        self._given: dict[int, list[int]] = {}
        """By round, whom this worker gives a copy as it is after that."""
        for rank in tape.ranks:
            for number in _copies_of(tape, rank).values():
                if rank != wire.rank and _giver(tape, rank, number) == wire.rank:
                    self._given.setdefault(number, []).append(rank)
                elif rank == wire.rank and _giver(tape, rank, number) is None:
                    raise ConfigurationError(
                        f"rank {rank} went on from a copy after round {number}, and no other worker is known to "
                        "have applied that round; such a run cannot be replayed"
                    )
        self._givers = {number: _giver(tape, wire.rank, number) for number in self._taken.values()}

    def due(self, look: Look) -> int | None:
        """The round after which this worker is a copy of another one in this look; None for none. Asked once."""
        return self._taken.pop(look, None)

    def take(self, number: int) -> Mapping[str, Any]:
        """Become one, as of round `number`; what came with it."""
        giver = self._givers[number]
        assert giver is not None
        _, message = self._wire.receive(giver, f"copy {number}").wait()
        header = {**message.header, "source": giver}
        self._replica.adopt(header["replica"], message.tensors)
        return header

    def give(self, number: int, about: Callable[[], Mapping[str, Any]]) -> None:
        """This worker has applied round `number`; `about` is what goes with a copy."""
        for rank in self._given.pop(number, ()):
            header, tensors = self._replica.capture(is_whole=False)
            message = Message(tuple(tensors), {"replica": header, **about()}, shared=True)
            self._wire.send(message, rank, f"copy {number}")


def _giver(tape: OptimizerTape, to: int, number: int) -> int | None:
    """Who gives the worker `to` a copy as of round `number`."""
    return min((rank for rank in tape.ranks if rank != to and tape.applies(rank, number)), default=None)


def _copies_of(tape: OptimizerTape, rank: int) -> Mapping[Look, int]:
    """But for those with which it joined: see `replayed_entries`."""
    joins = {look for look, _, _ in tape.entries_of(rank)}
    return {look: number for look, number in tape.copies.get(rank, {}).items() if look not in joins}
