"""The rounds of a run: the ranks and ages of the gradients in each, and the steps that computed them.

Rank 0 records the gradients of a round when it applies it. The times of the round and of the arrivals of gradients are
those of steps of all ranks. A gradient of staleness s in round r was computed on the parameters after round r − 1 − s.
Strategies without a quorum have no rounds in this sense.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from quorate.records.rows import RoundRow, Step
from quorate.report.reading.sound import is_count, row_of

MOST = 0.8
"""Everybody waits for everybody if at least this share of the meetings has all ranks in it."""


@dataclass(slots=True)
class RoundRecord:
    """One `round` row. Times are seconds on the clock of the run."""

    number: int
    time: float
    """When rank 0 applied it, which may be long after others did."""
    weight: float
    live: int
    """The number of live workers."""
    taken: Mapping[int, Sequence[tuple[int, int]]]
    """By rank, pairs of staleness and number of gradients."""
    optimizer: str | None = None
    update: int | None = None
    """The number of updates up to it, as `Step.round` counts them; None if unknown."""
    settings: Mapping[str, Any] | None = None
    """The settings from the next round on, if they have changed; else None."""
    why: str = ""
    """The reason of that change."""
    headers: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    """By rank, the header of its contribution."""
    window: float | None = None
    """The seconds of waiting for more workers than required; None if rounds have no window."""
    settles: bool = False
    """Whether it is of a pause, in which nobody stepped."""

    @property
    def is_applied(self) -> bool:
        """Whether it was an update: a round without contributions is applied by nobody."""
        return self.weight > 0.0

    @property
    def gradients(self) -> int:
        """The number of gradients in it."""
        return sum(count for counts in self.taken.values() for _, count in counts)


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
    """When the first replica had applied it: it was complete at that time at the latest."""
    gradients: list[RoundGradient] = field(default_factory=list)

    @property
    def last_arrival(self) -> float | None:
        """When the last of its gradients arrived; None if none of their steps is known."""
        return max((gradient.step.arrive for gradient in self.gradients), default=None)


def of_workers(record: RoundRecord, shards: int) -> RoundRecord:
    """Return a record of replicas of `shards` workers each, with the ranks of the workers."""
    if shards == 1:
        return record

    def spread(by_replica: Mapping[int, Any]) -> dict[int, Any]:
        return {shards * replica + shard: value for replica, value in by_replica.items() for shard in range(shards)}

    return replace(record, live=shards * record.live, taken=spread(record.taken), headers=spread(record.headers))


def round_of(row: Mapping[str, Any]) -> RoundRecord | None:
    """Return a `round` row as an object; None if a value is missing or damaged."""
    values, optimizer = row_of(RoundRow, row), row.get("optimizer")
    if values is None or not (optimizer is None or isinstance(optimizer, str)):
        return None
    try:
        taken = {
            int(rank): [(staleness, count) for staleness, count in counts]
            for rank, counts in values.contributors.items()
        }
        headers = {int(rank): words for rank, words in (values.told or {}).items()}
    except ValueError:
        return None
    if not all(is_count(number) for counts in taken.values() for pair in counts for number in pair):
        return None
    return RoundRecord(
        values.number,
        values.time,
        values.weight,
        values.live,
        taken,
        optimizer,
        settings=values.settings,
        why=values.why or "",
        headers=headers,
        window=values.window,
        settles=bool(values.settles),
    )


def take_back(rounds: list[RoundRecord], new: RoundRecord) -> None:
    """Remove rounds that `new` replaces: a replica was copied from one that had applied fewer."""
    while rounds and rounds[-1].number >= new.number and rounds[-1].optimizer == new.optimizer:
        rounds.pop()


def number_updates(rounds: Sequence[RoundRecord], step: Step) -> None:
    """Count the updates up to each of these `rounds`, which the rank applied in `step` or since the step before it."""
    count, after = step.round, None
    for record in reversed(rounds):
        if after is not None and record.number != after.number - 1:
            break  # rows are missing, or the rank went on from a copy of another replica
        record.update = count
        count, after = count - record.is_applied, record


def number_the_rest(rounds: Sequence[RoundRecord]) -> None:
    """Continue the count over rounds after which the rank took no step."""
    for early, late in pairwise(rounds):
        if late.update is None and early.update is not None and late.number == early.number + 1:
            late.update = early.update + late.is_applied


def merged_in(
    rounds: Sequence[RoundRecord], steps: Mapping[int, Sequence[Step]], moved: Mapping[int, Collection[int]]
) -> list[Merged]:
    """Return all rounds that were applied, with their gradients; `steps` are all of each rank, in order.

    `moved` are, by rank, the numbers of steps before which the replica may have applied more than the step before them
    had: those after an evaluation. Gradients that were dropped or replaced are in no round.
    """
    applied = [Merged(record, record.time) for record in rounds if record.is_applied]
    for rank_steps in steps.values():
        _applied_first(applied, rank_steps)
    numbers = [record.number for record in rounds]
    updates = [record.update for record in rounds]

    def updates_at(number: int) -> int | None:
        """Return the number of updates of a replica after this round."""
        place = bisect_right(numbers, number) - 1
        return 0 if number == 0 else updates[place] if place >= 0 and numbers[place] == number else None

    for rank, rank_steps in steps.items():
        bases = _bases(rank_steps, moved.get(rank, ()))
        at = 0
        for update in applied:
            for staleness, count in sorted(update.round.taken.get(rank, ()), reverse=True):
                base = updates_at(update.round.number - 1 - staleness)
                if base is None:
                    continue
                while at < len(rank_steps) and bases[at][1] < base:
                    at += 1
                while count and at < len(rank_steps) and bases[at][0] <= base <= bases[at][1]:
                    update.gradients.append(RoundGradient(rank, rank_steps[at], staleness))
                    at, count = at + 1, count - 1
    return applied


def _applied_first(updates: Iterable[Merged], steps: Sequence[Step]) -> None:
    """Set the times of rounds to when the rank with these steps had applied them, if that is earlier."""
    at = 0
    for merged in updates:
        count = merged.round.update
        if count is None:
            continue
        while at < len(steps) and steps[at].round < count:
            at += 1
        if at == len(steps):
            return
        merged.formed = min(merged.formed, steps[at].end)


def _bases(steps: Sequence[Step], moved: Collection[int]) -> list[tuple[int, int]]:
    """Return the least and the greatest number of updates in the parameters of each step."""
    bases = []
    before: Step | None = None
    for step in steps:
        follows = step.step == 1 if before is None else step.step == before.step + 1
        low = 0 if before is None else before.round
        bases.append((low, low if follows and step.step not in moved else step.round))
        before = step
    return bases


def last_arrivals(merged: Iterable[Merged]) -> dict[int, float]:
    """Return when the last gradient of each update arrived; workers that waited for it waited for others until then."""
    return {
        update.round.update: last
        for update in merged
        if update.round.update is not None and (last := update.last_arrival) is not None
    }


def wait_for_all(merged: Sequence[Merged]) -> bool:
    """Return whether nearly every round had a fresh gradient of every worker."""
    whole = sum(
        sum(any(staleness == 0 for staleness, _ in counts) for counts in update.round.taken.values())
        >= update.round.live
        for update in merged
    )
    return bool(merged) and whole >= MOST * len(merged)
