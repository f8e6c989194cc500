"""Among whom the graph of an exchange lies, when workers have died: the same on all that are left, and nobody waits.

Each writes on the board, before an exchange, which one it is about to begin without the newly dead being left out of
the graph. When all that are left have said so for the same dead, these are left out from the exchange after the last
of those: whoever finds that says it in the same word, by compare-and-set, so nobody has begun that exchange before.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from quorate.core.contracts import Wire


@dataclass
class _Loss:
    dead: frozenset[int]
    said: int = -1
    """The newest exchange that this worker has said to begin before it."""
    begins: int | None = None
    """The first one without the dead."""


class Members:
    """Those of the workers of `wire`.

    Cost: nothing while all live. After a death one or two words with the board for each exchange, until all have said
    theirs: as many exchanges as a worker makes meanwhile.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._losses: list[_Loss] = []

    def of(self, number: int) -> tuple[int, ...]:
        """Those of exchange `number`, in order of rank. Called for it by every worker that begins it, before it does.

        Numbers never fall.
        """
        gone = self._wire.dead.intersection(range(self._wire.size))  # who came later was never in the graph
        if gone and all(loss.dead != gone for loss in self._losses):
            self._losses.append(_Loss(gone))
        for loss in self._losses:
            if loss.begins is None and number > loss.said:
                self._say(loss, number)
        begun = [loss for loss in self._losses if loss.begins is not None and loss.begins <= number]
        if not begun:
            return tuple(range(self._wire.size))
        newest = max(begun, key=lambda loss: len(loss.dead))
        self._losses = [loss for loss in self._losses if loss.dead >= newest.dead]
        return self._without(newest.dead)

    def _without(self, dead: Collection[int]) -> tuple[int, ...]:
        return tuple(rank for rank in range(self._wire.size) if rank not in dead)

    def _say(self, loss: _Loss, number: int) -> None:
        board, key = self._wire.board, f"{self._wire.name}/without/{','.join(map(str, sorted(loss.dead)))}"
        while True:
            written = board.get(key)
            what = {"said": {}, "begins": None} if written is None else json.loads(written)
            if what["begins"] is not None:
                loss.begins = int(what["begins"])
                return
            what["said"][str(self._wire.rank)] = number
            if len(what["said"]) == self._wire.size - len(loss.dead):
                what["begins"] = 1 + max(what["said"].values())
            if board.swap(key, written, json.dumps(what).encode()):
                loss.said, loss.begins = number, what["begins"]
                return
