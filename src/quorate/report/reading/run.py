"""One run's folder as an object: `run.json`, `outcome.json`, and the rows of every rank on one clock.

Reading never fails on the files of a run. A missing file counts as empty, a row that is damaged or cut off is skipped,
and ranks may have any number of steps. Cost: some 10 µs a row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from quorate.records.records import ranks_in
from quorate.records.rows import Gone, Joined, Step
from quorate.records.run_files import OutcomeFile, RunFile
from quorate.report.reading.clocks import Spans, run_clocks
from quorate.report.reading.rank import RankRecords, read_rank
from quorate.report.reading.rounds import Merged, merged_in, number_the_rest, of_workers
from quorate.report.reading.sound import is_count, read_json, sound_parts

T = TypeVar("T", Gone, Joined)
WARM_UP_STEPS = 10
WARM_UP_SHARE = 0.1


@dataclass(frozen=True)
class RunRecords:
    """One run as it was recorded."""

    folder: Path
    about: dict[str, Any]
    """`run.json`; empty if there is none."""
    outcome: dict[str, Any] | None
    """`outcome.json`; None if the run has not ended, or nobody watched its end."""
    ranks: tuple[RankRecords, ...]
    """The ranks that have left rows, in order."""

    @property
    def size(self) -> int:
        """The number of workers of the run."""
        sizes = [self.about.get("workers"), *(rank.start.get("size") for rank in self.ranks)]
        return next((number for number in sizes if type(number) is int), len(self.ranks))

    @property
    def status(self) -> int | None:
        """The exit status, if known."""
        return (self.outcome or {}).get("status")

    @property
    def has_steps(self) -> bool:
        """Whether any rank took a step."""
        return any(rank.steps for rank in self.ranks)

    @property
    def is_virtual(self) -> bool:
        """Whether it was made in a virtual world."""
        return any(rank.start.get("clock") == "virtual" for rank in self.ranks)

    @property
    def clock_uncertainty(self) -> float:
        """The greatest error between the times of two ranks' steps, in seconds; infinite if not known."""
        by_clock = {id(rank.clock): rank.clock_uncertainty for rank in self.ranks if rank.steps}
        return sum(sorted(by_clock.values())[-2:])

    @property
    def deaths(self) -> list[Gone]:
        """The deaths of workers that were outlived."""
        return each_once([rank.deaths for rank in self.ranks])

    @property
    def joinings(self) -> list[Joined]:
        """The joins of workers after the start."""
        return each_once([rank.joinings for rank in self.ranks])

    @property
    def starts(self) -> dict[int, dict[str, Any]]:
        """The `start` rows by rank."""
        return {rank.rank: rank.start for rank in self.ranks}

    @property
    def replacements(self) -> list[tuple[Joined, Gone | None]]:
        """The joins, each with the death of the replaced worker."""
        return [(joining, replaced_by(joining, self.deaths, self.starts, self.size)) for joining in self.joinings]

    @property
    def newcomers(self) -> frozenset[int]:
        """The ranks of newcomers that have left rows."""
        return frozenset(rank.rank for rank in self.ranks if rank.is_newcomer)

    @property
    def steps(self) -> dict[int, list[Step]]:
        """The steps by rank, of ranks that took any."""
        return {rank.rank: rank.steps for rank in self.ranks if rank.steps}

    @property
    def pauses(self) -> Spans:
        """The evaluations of all ranks."""
        return Spans(span for rank in self.ranks for span in rank.evaluations.spans)

    def training_seconds(self, time: float) -> float:
        """Return the seconds of training up to `time`, by the lowest rank that took steps. The run has one."""
        return next(rank for rank in self.ranks if rank.steps).training_seconds(time, self.begin)

    def merged(self) -> list[Merged]:
        """Return the rounds that were applied, with their gradients; none under strategies without a quorum."""
        records = {record.number: record for rank in self.ranks for record in rank.rounds}  # by the lowest live rank
        shards = max((_shards(rank) for rank in self.ranks), default=1)
        rounds = [of_workers(records[number], shards) for number in sorted(records)]
        moved_on = {rank.rank: rank.after_evaluation | ({1} if rank.is_newcomer else set()) for rank in self.ranks}
        return merged_in(rounds, self.steps, moved_on)

    @property
    def usual_warm_up(self) -> int:
        """The number of first steps that do not represent the others: `WARM_UP_STEPS`, at most a tenth of all."""
        longest = max((len(rank.steps) for rank in self.ranks), default=0)
        return min(WARM_UP_STEPS, int(WARM_UP_SHARE * longest))

    @property
    def begin(self) -> float:
        """The begin of the first step of the lowest rank that took any. The run has one."""
        return next(rank.steps[0].begin for rank in self.ranks if rank.steps)

    def warm(self, warm_up: int) -> dict[int, list[Step]]:
        """Return the steps after the warm-up, by rank; only ranks that took any."""
        steps_after = {rank.rank: [step for step in rank.steps if step.step > warm_up] for rank in self.ranks}
        return {rank: steps for rank, steps in steps_after.items() if steps}

    def after(self, warm_up: int) -> dict[int, list[Step]]:
        """Return the steps that measure, by rank: after the warm-up, and not next after an evaluation.

        If evaluations are so frequent that this would leave out half of the steps, those after them count as well.
        """
        warm = self.warm(warm_up)
        paused = {rank.rank: rank.after_evaluation for rank in self.ranks}
        calm = {rank: [step for step in steps if step.step not in paused[rank]] for rank, steps in warm.items()}
        is_most = 2 * sum(map(len, calm.values())) > sum(map(len, warm.values()))
        return {rank: steps for rank, steps in (calm if is_most else warm).items() if steps}


def read_run(folder: Path, *, only: Collection[int] | None = None, most_bytes: int | None = None) -> RunRecords:
    """Read the run in `folder`, complete or not; of all ranks, or of some `only`.

    Of files longer than `most_bytes` only the first rows are read, and the last `most_bytes`.
    """
    ranks = [read_rank(folder, rank, most_bytes) for rank in ranks_in(folder) if only is None or rank in only]
    _align(ranks)
    _keep_first_optimizer(ranks)
    for records in ranks:
        _leave_out_evaluation(records)
    _exclude_before_joining(ranks)
    about, outcome = read_json(folder / "run.json") or {}, read_json(folder / "outcome.json")
    ended = None if outcome is None else sound_parts(outcome, OutcomeFile)
    return RunRecords(folder, sound_parts(about, RunFile), ended, tuple(ranks))


def _align(ranks: list[RankRecords]) -> None:
    clocks = run_clocks({rank.rank: rank.start for rank in ranks}, {rank.rank: rank.offsets for rank in ranks})
    for rank in ranks:
        rank.move(clocks[rank.rank])


def _keep_first_optimizer(ranks: list[RankRecords]) -> None:
    names = [str(rank.distributed["optimizer"]) for rank in ranks if "optimizer" in rank.distributed]
    names += [step.optimizer for rank in ranks for step in rank.steps[:1]]
    if not names:
        return
    first = names[0]
    for rank in ranks:
        rank.others = [step for step in rank.steps if step.optimizer != first]
        if rank.others:
            rank.steps = [step for step in rank.steps if step.optimizer == first]
        rank.rounds = [merged for merged in rank.rounds if merged.optimizer in (None, first)]
        rank.served = [served for served in rank.served if served.optimizer == first]
        number_the_rest(rank.rounds)


def _leave_out_evaluation(rank: RankRecords) -> None:
    """Let steps begin after the evaluations before them; computing during those is no part of the step."""
    if not rank.evaluations:
        return
    before = None
    for step in rank.steps:
        since = step.begin if before is None else min(before, step.begin)
        inside = rank.evaluations.between(step.begin, step.arrive)
        if inside > 0.0:
            step.begin += inside
            step.compute = max(0.0, min(step.compute, step.arrive - step.begin - step.data - step.delay))
        if inside > 0.0 or rank.evaluations.between(since, step.arrive) > 0.0:
            rank.after_evaluation.add(step.step)
        before = step.end


def _exclude_before_joining(ranks: list[RankRecords]) -> None:
    """Add evaluations of the first rank before a newcomer joined to its own: no worker trained then."""
    for rank in ranks:
        if rank.is_newcomer and rank.steps:
            first = rank.steps[0].begin
            before = [(begin, min(end, first)) for begin, end in ranks[0].evaluations.spans if begin < first]
            rank.evaluations = Spans([*before, *rank.evaluations.spans])


def _shards(rank: RankRecords) -> int:
    value: Any = rank.distributed.get("shards")
    return value if is_count(value) and value > 0 else 1


def each_once(rows: Iterable[Sequence[T]]) -> list[T]:
    """Return the rows of all ranks in order, one for each event: a second rank may have recorded it as well."""
    by_rank: dict[int, T] = {}
    for event in (event for rank_rows in rows for event in rank_rows):
        other = by_rank.get(event.rank)
        by_rank[event.rank] = event if other is None or event.time < other.time else other
    return sorted(by_rank.values(), key=lambda event: event.time)


def replaced_by(
    joining: Joined, deaths: Sequence[Gone], starts: Mapping[int, Mapping[str, Any]], size: int
) -> Gone | None:
    """Return the last death of a worker in the same place; None for a worker that replaced none.

    `starts` are the `start` rows by rank, which have `seat`, the rank that a newcomer replaces.
    """
    replaced_rank = starts.get(joining.rank, {}).get("seat")
    before = [
        death
        for death in deaths
        if death.time <= joining.time
        and death.rank != joining.rank
        and replaced_rank == (death.rank if death.rank < size else starts.get(death.rank, {}).get("seat"))
    ]
    return before[-1] if before and replaced_rank is not None else None


@dataclass
class LeftOut:
    """The exclusions of one rank, for one reason."""

    rank: int
    why: str
    count: int = 0
    """The number of sums."""
    times: list[float] = field(default_factory=list)
    """Times of records, in seconds of training time."""


def left_out_of(run: RunRecords) -> tuple[list[LeftOut], int]:
    """Return exclusions by rank and reason, and the number of sums."""
    exclusions: dict[tuple[int, str], LeftOut] = {}
    rows = sorted((row for rank in run.ranks for row in rank.exclusions), key=lambda row: row.time)
    for row in rows:
        for entry in row.ranks:
            if len(entry) == 3 and isinstance(entry[0], int) and isinstance(entry[2], int):
                exclusion = exclusions.setdefault((entry[0], str(entry[1])), LeftOut(entry[0], str(entry[1])))
                exclusion.count += entry[2]
                exclusion.times.append(run.training_seconds(row.time))
    newest = defaultdict[str, int](int)
    for step in (step for rank in run.ranks for step in rank.steps):
        newest[step.optimizer] = max(newest[step.optimizer], step.round)
    sums = max(1, sum(newest.values()), *(exclusion.count for exclusion in exclusions.values()))
    return [exclusion for _, exclusion in sorted(exclusions.items())], sums
