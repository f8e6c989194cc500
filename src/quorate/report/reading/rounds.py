"""The rounds of a run: whose gradients each took in, how old they were, and the steps they came from.

Rank 0 records what a round took in, when it applies it. When the round was there, and when each gradient had come, is
found among the steps of all ranks: a gradient of staleness s in round r was computed on the parameters after round
r − 1 − s. Strategies without a quorum have no rounds in this sense, and none of what is said here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from quorate.records.round_rows import RoundRow
from quorate.records.rows import Step
from quorate.report.reading.meetings import MOST
from quorate.report.reading.rows import row_of
from quorate.report.reading.sound import is_count


@dataclass(slots=True)
class RoundRecord:
    """One `round` row. Times are seconds on the clock of the run."""

    number: int
    time: float
    """When rank 0 applied it, which may be long after others did."""
    weight: float
    live: int
    """Workers that were counted."""
    taken: Mapping[int, Sequence[tuple[int, int]]]
    """By rank, pairs of staleness and number of gradients."""
    optimizer: str | None = None
    update: int | None = None
    """How many updates had been applied after it, as `Step.round` counts them; None where that is not known."""
    settings: Mapping[str, Any] | None = None
    """What is in force from the next round on, where it has changed; None where it has not."""
    why: str = ""
    """It has changed."""
    told: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    """By rank, what it said beside what it gave."""
    window: float | None = None
    """Seconds that were waited for more workers than had to call; None where rounds have no window."""
    settles: bool = False
    """Nobody stepped."""

    @property
    def is_applied(self) -> bool:
        """Whether it was an update: a round in which nothing was pending is applied by nobody."""
        return self.weight > 0.0

    @property
    def gradients(self) -> int:
        """How many it took in."""
        return sum(count for given in self.taken.values() for _, count in given)


@dataclass(frozen=True, slots=True)
class RoundGradient:
    """One gradient in a round: the step of `rank` that it came from."""

    rank: int
    step: Step
    staleness: int


@dataclass(slots=True)
class Merged:
    """A round that was applied, and the gradients in it as far as their steps are known."""

    round: RoundRecord
    formed: float
    """When the first replica had applied it: it was there at that time at the latest."""
    given: list[RoundGradient] = field(default_factory=list)

    @property
    def last_arrival(self) -> float | None:
        """When the last of its gradients had come; None where none of their steps is known."""
        return max((one.step.arrive for one in self.given), default=None)


def of_workers(one: RoundRecord, shards: int) -> RoundRecord:
    """`one`, of replicas that are spread over so many workers each, by the ranks of the workers."""
    if shards == 1:
        return one

    def spread(by_replica: Mapping[int, Any]) -> dict[int, Any]:
        return {shards * replica + shard: said for replica, said in by_replica.items() for shard in range(shards)}

    return replace(one, live=shards * one.live, taken=spread(one.taken), told=spread(one.told))


def round_of(row: Mapping[str, Any]) -> RoundRecord | None:
    """A `round` row as an object; None where something is missing."""
    found, optimizer = row_of(RoundRow, row), row.get("optimizer")
    if found is None or not (optimizer is None or isinstance(optimizer, str)):
        return None
    try:
        taken = {
            int(rank): [(staleness, count) for staleness, count in given] for rank, given in found.contributors.items()
        }
        told = {int(rank): words for rank, words in (found.told or {}).items()}
    except ValueError:
        return None
    if not all(is_count(count) for given in taken.values() for pair in given for count in pair):
        return None
    return RoundRecord(
        found.number,
        found.time,
        found.weight,
        found.live,
        taken,
        optimizer,
        settings=found.settings,
        why=found.why or "",
        told=told,
        window=found.window,
        settles=bool(found.settles),
    )


def take_back(rounds: list[RoundRecord], new: RoundRecord) -> None:
    """Remove what came to nothing before `new`: a replica was copied from one that had not gone so far."""
    while rounds and rounds[-1].number >= new.number and rounds[-1].optimizer == new.optimizer:
        rounds.pop()


def number_updates(rounds: Sequence[RoundRecord], step: Step) -> None:
    """Count the updates up to each of these `rounds`, which the rank applied in `step` or since the step before it."""
    count, after = step.round, None
    for one in reversed(rounds):
        if after is not None and one.number != after.number - 1:
            break  # rows are missing, or the rank went on from a copy of another replica
        one.update = count
        count, after = count - one.is_applied, one


def number_the_rest(rounds: Sequence[RoundRecord]) -> None:
    """Count on from where the count was, over rounds after which the rank took no step."""
    for early, late in pairwise(rounds):
        if late.update is None and early.update is not None and late.number == early.number + 1:
            late.update = early.update + late.is_applied


def merged_in(
    rounds: Sequence[RoundRecord], steps: Mapping[int, Sequence[Step]], moved: Mapping[int, Collection[int]]
) -> list[Merged]:
    """All rounds that were applied, with their gradients; `steps` are all of each rank, in order.

    `moved` are, by rank, the numbers of steps before which the replica may have applied more than the step before them
    had: those after an evaluation. Gradients that were dropped or replaced are in no round.
    """
    found = [Merged(one, one.time) for one in rounds if one.is_applied]
    for own in steps.values():
        _applied_first(found, own)
    numbers = [one.number for one in rounds]
    updates = [one.update for one in rounds]

    def updates_at(number: int) -> int | None:
        """How many updates a replica had applied that had applied this round and no later one."""
        place = bisect_right(numbers, number) - 1
        return 0 if number == 0 else updates[place] if place >= 0 and numbers[place] == number else None

    for rank, own in steps.items():
        bases = _bases(own, moved.get(rank, ()))
        at = 0
        for one in found:
            for staleness, count in sorted(one.round.taken.get(rank, ()), reverse=True):
                base = updates_at(one.round.number - 1 - staleness)
                if base is None:
                    continue
                while at < len(own) and bases[at][1] < base:
                    at += 1
                while count and at < len(own) and bases[at][0] <= base <= bases[at][1]:
                    one.given.append(RoundGradient(rank, own[at], staleness))
                    at, count = at + 1, count - 1
    return found


def _applied_first(found: Iterable[Merged], steps: Sequence[Step]) -> None:
    """Let rounds have been there when the rank with these steps had applied them, where that is earlier."""
    at = 0
    for one in found:
        update = one.round.update
        if update is None:
            continue
        while at < len(steps) and steps[at].round < update:
            at += 1
        if at == len(steps):
            return
        one.formed = min(one.formed, steps[at].end)


def _bases(steps: Sequence[Step], moved: Collection[int]) -> list[tuple[int, int]]:
    """The least and the greatest number of updates in the parameters that each step computed on."""
    bases = []
    before: Step | None = None
    for step in steps:
        follows = step.step == 1 if before is None else step.step == before.step + 1
        low = 0 if before is None else before.round
        bases.append((low, low if follows and step.step not in moved else step.round))
        before = step
    return bases


def last_arrivals(merged: Iterable[Merged]) -> dict[int, float]:
    """By update, when the last of its gradients had come: until then, who had called for it waited for others."""
    return {
        one.round.update: last
        for one in merged
        if one.round.update is not None and (last := one.last_arrival) is not None
    }


def wait_for_all(merged: Sequence[Merged]) -> bool:
    """Whether nearly every round had a fresh gradient of every worker."""
    whole = sum(
        sum(any(staleness == 0 for staleness, _ in given) for given in one.round.taken.values()) >= one.round.live
        for one in merged
    )
    return bool(merged) and whole >= MOST * len(merged)
