"""What an optimizer's means say of checkpoints: how many workers have saved since the mean before."""

from __future__ import annotations

from typing import Protocol


class Saves(Protocol):
    """See `checkpoint.saving.Saving`."""

    def says(self, worker: object) -> bool:
        """Whether the next header of `worker` is to say that it has saved since its last one."""

    def exchanged(self, worker: object, said: float, size: int, *, is_away: bool, all_away: bool) -> None:
        """A mean of `worker` is over in which `said` workers of `size` said so."""


class SaveFlags:
    """Those of `worker`, to and from the headers of its means."""

    def __init__(self, saving: Saves, worker: object) -> None:
        self._saving, self._worker = saving, worker

    def mine(self) -> float:
        """What goes into this worker's next header."""
        return float(self._saving.says(self._worker))

    def learn(self, said: float, size: int, *, is_away: bool, all_away: bool) -> None:
        """The sum of everyone's, of `size` workers, which all have learnt in the same mean.

        `is_away` is this worker where it takes part without stepping, `all_away` are all.
        """
        self._saving.exchanged(self._worker, said, size, is_away=is_away, all_away=all_away)
