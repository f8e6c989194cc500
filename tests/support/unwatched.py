"""A watch of rounds that keeps nothing: see `entering.Watching`."""

from __future__ import annotations

from quorate.records.tape import Look, Position


class Unwatched:
    def looked(self, look: Look, number: int, source: int | None = None) -> None:
        pass

    def gave(self, at: Position, to: int) -> None:
        pass
