"""Batches of an epoch that are dealt out to whoever asks, through the board; those of the dead are dealt out again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.records.rows import Claim
from quorate.records.tape import Replaying

Claimed = Callable[[Claim], None]
"""Told of every batch."""


class Claims:
    """One worker's part in dealing out the batches of loader `loader`.

    Where the others go on at a death (`tolerates_death`), the board holds which batches each worker has taken and not
    computed yet, so that those of one that dies can be taken by others. Cost: one word with the board per batch, two
    in that case.
    """

    def __init__(
        self, wire: Wire, loader: int, tolerates_death: Callable[[], bool], claimed: Claimed = lambda row: None
    ) -> None:
        self._wire, self._key, self._tolerates_death = wire, f"loader/{loader}", tolerates_death
        self._loader, self._claimed = loader, claimed
        self._open: dict[int, list[int]] = {}

    def claim(self, iteration: int) -> int:
        """The next number, which nobody else gets."""
        number = self._wire.board.add(f"{self._key}/{iteration}") - 1
        self._take(iteration, number)
        self._claimed(Claim(loader=self._loader, iteration=iteration, batch=number))
        return number

    def _take(self, iteration: int, number: int) -> None:
        if self._tolerates_death():
            mine = self._open.setdefault(iteration, [])
            mine.append(number)
            self._wire.board.set(self._place(iteration, self._wire.rank), json.dumps(mine).encode())

    def computed(self, iteration: int, number: int) -> None:
        """This worker has computed it; the board learns of it with the next claim."""
        mine = self._open.get(iteration, [])
        if number in mine:
            mine.remove(number)

    def left(self, iteration: int, count: int) -> Iterator[int]:
        """Of the `count` batches, what the dead have taken and not computed: each goes to the first that asks."""
        board = self._wire.board
        for rank in sorted(self._wire.dead) if self._tolerates_death() else ():
            for number in json.loads(board.get(self._place(iteration, rank)) or b"[]"):
                again = f"{self._key}/again/{iteration}/{number} of {rank}"
                if number < count and board.swap(again, None, b"%d" % self._wire.rank):
                    self._take(iteration, number)
                    self._claimed(Claim(loader=self._loader, iteration=iteration, batch=number, of=rank))
                    yield number

    def _place(self, iteration: int, rank: int) -> str:
        return f"{self._key}/open/{iteration}/{rank}"


class ReplayedClaims:
    """As `Claims`: what the records say that worker `rank` had. It may have died: then it `ends` behind the last."""

    def __init__(self, replaying: Replaying, rank: int, loader: int) -> None:
        assert replaying.tape is not None
        self._tape, self._ends, self._rank, self._loader = replaying.tape, replaying.ends, rank, loader
        self._left: dict[int, Iterator[int]] = {}

    def claim(self, iteration: int) -> int:
        """As of `Claims`."""
        own = (one.batch for one in self._of(iteration) if one.of is None)
        batch = next(self._left.setdefault(iteration, own), None)
        if batch is None and self._rank in self._tape.dead:
            for end in self._ends:
                end()
        if batch is None:
            raise ConfigurationError(
                f"the records have no further batch for rank {self._rank} in iteration {iteration} of loader "
                f"{self._loader}: the script does something else than the recorded run did"
            )
        return batch

    def _of(self, iteration: int) -> Sequence[Claim]:
        return self._tape.claims_of(self._rank, self._loader, iteration)

    def computed(self, iteration: int, number: int) -> None:
        """Nothing is dealt out again but what was."""

    def left(self, iteration: int, count: int) -> Iterator[int]:
        """As of `Claims`."""
        yield from (one.batch for one in self._of(iteration) if one.of is not None)
