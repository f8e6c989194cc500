"""What a member has given to rounds: counted once, or taken back where a round went by without it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from quorate.rounds.log import HISTORY, Log
from quorate.rounds.pending import PendingGradients, Snapshot


class Giving:
    """That of worker `rank`. `lock` guards `pending`, which its training thread adds to."""

    def __init__(self, pending: PendingGradients, log: Log, rank: int, lock: AbstractContextManager[Any]) -> None:
        self._pending, self._log, self._rank, self._lock = pending, log, rank, lock
        self.snapshots: dict[int, Snapshot] = {}
        """By round."""
        self._weights: dict[int, float] = {}
        """By round, of what was given and not taken back, as far back as goes with a copy."""

    def give(self, number: int) -> Snapshot:
        """What round `number` gets, also where it is asked for again."""
        known = self.snapshots.get(number)
        if number <= self._log.newest:  # formed under another leader: one of the two will come to nothing
            return Snapshot(number, [], self._pending.step, self._pending.options)
        if known is not None:
            return known
        with self._lock:
            snapshot = self.snapshots[number] = self._pending.take(number)
        self._weights[number] = sum(entry.weight for entry in snapshot.entries)
        for old in [past for past in self._weights if past <= number - HISTORY]:
            del self._weights[old]
        return snapshot

    def put_back(self, newest: int, oldest_needed: int) -> None:
        """Take back what was given to rounds that went by without it; forget what they took, but for what checkpoints
        need: all beyond `oldest_needed`."""
        for number in [n for n in self.snapshots if n <= newest]:
            if self._log.took(number, self._rank) is False:
                self._take_back(number)
            elif number < newest and number <= oldest_needed:
                del self.snapshots[number]

    def _take_back(self, number: int) -> None:
        with self._lock:
            self._pending.give_back(self.snapshots.pop(number))
        self._weights.pop(number, None)

    def jumped(self, number: int, newest: int) -> None:
        """This replica was in round `newest`, and is a copy of another one now, as that was after round `number`."""
        for given in sorted(self._weights):
            took = self._log.took(given, self._rank)
            if took or (given <= number and took is None) or (given > max(number, newest)):
                continue  # it counts, or nobody knows any more, or its round is still to come
            if given in self.snapshots and given > number:
                continue  # the round is formed anew, from this snapshot
            if given in self.snapshots:
                self._take_back(given)
            else:  # an old leader's round took it, and came to nothing
                with self._lock:
                    self._pending.lose(self._weights.pop(given))
        for old in [past for past in self.snapshots if past <= number]:
            del self.snapshots[old]
