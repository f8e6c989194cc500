"""`Wait`: the work of one contribution to rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core.contracts import Work

if TYPE_CHECKING:
    from quorate.rounds.rounds import Rounds


class Wait:
    """Done when the round that was called for is there, or those that had started."""

    def __init__(self, rounds: Rounds, number: int, *, is_called_for: bool = True) -> None:
        self._rounds, self.number, self.is_called_for = rounds, number, is_called_for

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._rounds.is_there(self.number)

    def wait(self, timeout: float | None = None) -> int:
        """The number of the round; raises as `Work.wait`."""
        self._rounds.until(self.number, timeout, is_called_for=self.is_called_for)
        if not self.done():
            self._rounds.goes_on()
        return self.number


_: type[Work[int]] = Wait
