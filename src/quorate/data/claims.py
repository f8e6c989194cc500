"""Batches of an epoch that workers claim through the board; those of dead workers can be claimed again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.records.rows import Claim
from quorate.records.tape import Replaying

Claimed = Callable[[Claim], None]
"""Called with every batch."""


class Claims:
    """One worker's claims of the batches of loader `loader`.

    Where training goes on after a death (`tolerates_death`), the board holds the batches that each worker has claimed
    and not computed yet. Other workers can claim those of a worker that dies. Cost: one request to the board per batch,
    two in that case.
    """

    def __init__(
        self, wire: Wire, loader: int, tolerates_death: Callable[[], bool], claimed: Claimed = lambda row: None
    ) -> None:
        self._wire, self._key, self._tolerates_death = wire, f"loader/{loader}", tolerates_death
        self._loader, self._claimed = loader, claimed
        self._open: dict[int, list[int]] = {}

    def claim(self, iteration: int) -> int:
        """Return the next number, which no other worker gets."""
        number = self._wire.board.add(f"{self._key}/{iteration}") - 1
        self._take(iteration, number)
        self._claimed(Claim(loader=self._loader, iteration=iteration, batch=number))
        return number

    def _take(self, iteration: int, number: int) -> None:
        if self._tolerates_death():
            open_batches = self._open.setdefault(iteration, [])
            open_batches.append(number)
            self._wire.board.set(self._place(iteration, self._wire.rank), json.dumps(open_batches).encode())

    def computed(self, iteration: int, number: int) -> None:
        """Note that this worker has computed a batch; the next claim writes it to the board."""
        open_batches = self._open.get(iteration, [])
        if number in open_batches:
            open_batches.remove(number)

    def left(self, iteration: int, count: int) -> Iterator[int]:
        """Yield, of the `count` batches, those that dead workers have claimed and not computed; each goes to one
        worker."""
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
    """`Claims` from records: the batches of worker `rank`. If it died, it calls `ends` after the last."""

    def __init__(self, replaying: Replaying, rank: int, loader: int) -> None:
        assert replaying.tape is not None
        self._tape, self._ends, self._rank, self._loader = replaying.tape, replaying.ends, rank, loader
        self._left: dict[int, Iterator[int]] = {}

    def claim(self, iteration: int) -> int:
        """Return the next batch in the records."""
        own = (row.batch for row in self._of(iteration) if row.of is None)
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
        """Do nothing: the records have the batches that were claimed again."""

    def left(self, iteration: int, count: int) -> Iterator[int]:
        """Yield the batches of dead workers that the records have for this worker."""
        yield from (row.batch for row in self._of(iteration) if row.of is not None)
