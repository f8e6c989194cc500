"""What an optimizer's exchanges say of saving: how many workers have saved since the exchange before."""

from __future__ import annotations

from typing import Protocol


class Counting(Protocol):
    """Knows how many workers were in the newest exchange."""

    @property
    def counted(self) -> int: ...


class Party(Protocol):
    """One worker's part in the exchanges."""

    ended: bool
    resting: bool
    all_ended: bool
    all_away: bool

    @property
    def reducer(self) -> Counting: ...


class Saves(Protocol):
    """See `saving.Saving`."""

    def says(self, worker: object) -> bool: ...

    def exchanged(self, worker: object, said: float, size: int, *, is_away: bool, all_away: bool) -> None: ...


class Marks:
    """Carries them to and from an optimizer's exchanges; by itself it says nothing, until `follow` is called."""

    def __init__(self, saving: Saves | None, party: Party) -> None:
        self._saving, self._party = saving, party
        self._worker: object = None

    def follow(self, saving: Saves, worker: object) -> None:
        """From now on they are those of `worker`."""
        self._saving, self._worker = saving, worker

    def mine(self) -> float:
        """What goes into this worker's next header."""
        return float(self._saving is not None and self._saving.says(self._worker))

    def learn(self, said: float) -> None:
        """The sum of everyone's, which all workers have learnt in the same exchange."""
        party = self._party
        if self._saving is not None:
            is_away, all_away = party.ended or party.resting, party.all_ended or party.all_away
            self._saving.exchanged(self._worker, said, party.reducer.counted, is_away=is_away, all_away=all_away)
