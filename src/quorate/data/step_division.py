"""The micro-batches of each step, divided among the workers that live, so that the batch of all stays as it was.

With W workers at the start and G micro-batches of each in a step, a step has B = W G micro-batches, whoever lives. Of
W' workers each computes q = B div W' of them, and B mod W' workers compute one more. If a worker dies in a step, only
its micro-batches of this step are divided again. Each worker follows the same sums, and so has the same division.

Cost: nothing is sent. A step takes as long as the largest number of micro-batches of a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from quorate.core.errors import ConfigurationError


class StepDivision:
    """The division of one worker's run. The epoch has a part for each worker of the start, as in DDP's equal split.

    Batch k of part r is number k W + r of the epoch. A step has G batches of each part; the last one may have fewer.
    """

    def __init__(self, rank: int, workers: int, each: int, parts: Sequence[int] | None = None) -> None:
        """
        Args:
            rank: This worker.
            workers: The number of workers of the start, W.
            each: The micro-batches of each of them in a step, G.
            parts: The part of the epoch of each worker of the start, where others have further parts; None: there are
                W parts, in order. In shards, workers are replicas, each with as many parts as it has shards.
        """
        self.rank, self.workers, self.each = rank, workers, each
        self.parts = range(workers) if parts is None else parts
        self.members: Sequence[int] = range(workers)
        """The workers among which steps are divided; a dead one until a sum lacks it."""
        self.version = 0
        """The number of changes of the members so far."""
        self.held: Mapping[int, Sequence[int]] = {}
        """The numbers of the current step's micro-batches, by worker; empty outside of a pass."""
        self.taken = 0
        """How many of its own this worker has begun in the current step, or since the newest sum of a part of it."""
        self.is_partial = False
        """Whether a sum has a part of the current step, and not all of it."""
        self.idle: list[Callable[[], object]] = []
        """Called, in order, where this worker has nothing to compute in the current step, before its next batch."""
        self.begin = 0
        """The first batch of each part that is in the current step."""
        self.may_meet = False
        """Whether the script has asked since the newest batch whether its step is over, and it is."""
        self._batches = 0
        self._has_adopted = False

    def set_out(self, batches: int, begin: int) -> None:
        """Begin a pass over `batches` of each part at number `begin`; a newcomer, at the place that it has adopted.

        Raises `ConfigurationError` inside a step.
        """
        has_adopted, self._has_adopted = self._has_adopted, False
        if has_adopted:  # the pass may be over since
            return
        if self.taken:
            raise ConfigurationError(
                'with batch="kept" a pass over a loader was begun in the middle of a step of another one; train on one '
                "quorate.loader, to the end of a step"
            )
        self._batches, self.begin = batches, begin
        self._divide()

    def ahead(self) -> Iterator[int]:
        """Yield the numbers of this worker's micro-batches from the current place on, as long as no member changes."""
        begin, members = self.begin, self.members
        own = self.held.get(self.rank, ())[self.taken :]
        while begin < self._batches:
            yield from own
            begin += self.each
            own = divided(self._numbers(begin), members).get(self.rank, ())

    @property
    def next(self) -> int | None:
        """The number of this worker's next micro-batch of the current step; None if it has begun all of them."""
        own = self.held.get(self.rank, ())
        return own[self.taken] if self.taken < len(own) else None

    @property
    def is_inside(self) -> bool:
        """Whether this worker has begun the current step, or some sum has."""
        return self.taken > 0 or self.is_partial

    @property
    def total(self) -> int:
        """The number of micro-batches of the current step."""
        return len(self._numbers(self.begin))

    def take(self) -> None:
        """Note that this worker begins its `next` micro-batch."""
        self.taken += 1
        self.may_meet = False

    def leave(self) -> None:
        """End a pass, at the same step on all workers."""
        self.taken, self.held, self.is_partial = 0, {}, False

    def check_meeting(self) -> None:
        """Raise `ConfigurationError` where the script calls all workers together inside a step, or might do so."""
        if self.held and not self.may_meet:
            raise ConfigurationError(
                'with batch="kept" a worker may have several batches in a step; inside the loop over batches, call '
                "world.mean(), world.evaluate() and the like only if optimizer.has_updated"
            )

    def check_next(self) -> None:
        """Raise `ConfigurationError` where this worker asks for a batch, and has not ended the step before."""
        if self.next is None and not self.taken:
            for take_part in self.idle:
                take_part()
        if self.held and self.next is None:
            raise ConfigurationError(
                f'with batch="kept" a step is divided among at most {self.workers} workers, and there are '
                f"{len(self.members)}: start more workers, or let fewer join"
                if not self.taken
                else 'with batch="kept" each batch of the loader needs one backward pass and optimizer.step(); the '
                "step of the last batch was not made"
            )

    def summed(self, ranks: Collection[int]) -> bool:
        """Note that a sum has all micro-batches of `ranks`; return whether this is the whole step.

        Otherwise the missing ones are divided among `ranks`, first to those that hold the fewest.
        """
        missing = sorted(number for rank, own in self.held.items() if rank not in ranks for number in own)
        if sorted(ranks) != list(self.members):
            self.members, self.version = sorted(ranks), self.version + 1
        if not missing:
            self.begin = min(self.begin + self.each, self._batches)
            self._divide()
            return True
        held = {rank: list(self.held.get(rank, ())) for rank in self.members}
        for number in missing:
            min(held.values(), key=len).append(number)
        self.held = held
        return False

    def added(self, ranks: Collection[int], members: Collection[int]) -> bool:
        """Note that the micro-batches of `ranks` are in a sum of parts; return whether the whole step is.

        Otherwise the missing ones, and only those, are divided among `members`, who hold nothing else then. Each sum
        has what workers have computed since the sum before (for `summed`, since the step began).
        """
        missing = sorted(number for rank, own in self.held.items() if rank not in ranks for number in own)
        fewest = sorted(members, key=lambda rank: (len(self.held.get(rank, ())), rank))
        if sorted(members) != list(self.members):
            self.members, self.version = sorted(members), self.version + 1
        if ranks and self.held and not missing:
            self.begin = min(self.begin + self.each, self._batches)
            self._divide()
            return True
        self.taken, self.held, self.version = 0, divided(missing, fewest), self.version + 1
        self.is_partial |= bool(ranks)
        return False

    def captured(self) -> dict[str, Any]:
        """Return the place of a worker that has begun no micro-batch, for another one; plain JSON values."""
        held = [[rank, list(own)] for rank, own in self.held.items()]
        return {"members": list(self.members), "held": held, "begin": self.begin, "batches": self._batches} | {
            "is_partial": self.is_partial
        }

    def adopt(self, place: Mapping[str, Any]) -> None:
        """Go on at the place that another worker has `captured`."""
        self.members, self.version = place["members"], self.version + 1
        self.taken, self.held = 0, dict(place["held"])
        self._has_adopted = bool(self.held)
        self.begin, self._batches, self.is_partial = place["begin"], place["batches"], place["is_partial"]

    def count(self, ranks: Collection[int]) -> int:
        """Return how many micro-batches of the current step `ranks` hold."""
        return sum(len(own) for rank, own in self.held.items() if rank in ranks)

    def join(self, newcomers: Collection[int]) -> None:
        """Let `newcomers` have a share from the next step on; all members call this after the same sum."""
        self.enter(sorted({*self.members, *newcomers}))

    def enter(self, members: Sequence[int]) -> None:
        """Divide among these `members` from the next step on."""
        self.members, self.version = members, self.version + 1
        self._divide()

    def _divide(self) -> None:
        self.taken, self.held, self.is_partial = 0, divided(self._numbers(self.begin), self.members), False

    def _numbers(self, begin: int) -> list[int]:
        """Return the batches of the step that begins at `begin`, those of each part together."""
        batches = range(begin, min(begin + self.each, self._batches))
        return [batch * self.workers + part for part in range(self.workers) for batch in batches]


def divided(numbers: Sequence[int], members: Sequence[int]) -> dict[int, list[int]]:
    """Return so many `numbers` for each of the `members` that none has more than one above another; {} for none."""
    if not numbers:
        return {}
    quota, more = divmod(len(numbers), len(members))
    ends = [quota * (place + 1) + min(place + 1, more) for place in range(len(members))]
    return {rank: list(numbers[begin:end]) for rank, begin, end in zip(members, [0, *ends], ends, strict=False)}
