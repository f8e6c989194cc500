"""One run's folder as an object: `run.json`, `outcome.json`, and the rows of every rank on one clock.

Nothing here fails on what a run left behind: a file that is missing counts as empty, a row that is damaged or cut off
is skipped, ranks may have any number of steps. Cost: some 10 µs a row.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quorate.records.records import ranks_in
from quorate.records.rows import Gone, Joined, Step
from quorate.records.run_files import OutcomeFile, RunFile
from quorate.report.reading.clocks import run_clocks
from quorate.report.reading.events import each_once
from quorate.report.reading.joinings import replaced_by
from quorate.report.reading.rank import RankRecords, read_rank
from quorate.report.reading.rounds import Merged, merged_in, number_the_rest, of_workers
from quorate.report.reading.rows import sound_parts
from quorate.report.reading.sound import is_count, read_json
from quorate.report.reading.spans import Spans

WARM_UP_STEPS = 10
WARM_UP_SHARE = 0.1


@dataclass(frozen=True)
class RunRecords:
    """One run as it was recorded."""

    folder: Path
    about: dict[str, Any]
    """`run.json`; empty where there is none."""
    outcome: dict[str, Any] | None
    """`outcome.json`; None where the run has not ended, or nobody watched it end."""
    ranks: tuple[RankRecords, ...]
    """Those that have left rows, by rank."""

    @property
    def size(self) -> int:
        """How many workers the run had."""
        said = [self.about.get("workers"), *(one.start.get("size") for one in self.ranks)]
        return next((number for number in said if type(number) is int), len(self.ranks))

    @property
    def status(self) -> int | None:
        """The exit status, as far as it is known."""
        return (self.outcome or {}).get("status")

    @property
    def has_steps(self) -> bool:
        """Whether any rank took one."""
        return any(one.steps for one in self.ranks)

    @property
    def is_virtual(self) -> bool:
        """Whether it was made in a virtual world."""
        return any(one.start.get("clock") == "virtual" for one in self.ranks)

    @property
    def clock_uncertainty(self) -> float:
        """Seconds by which the times of two ranks' steps, side by side, are wrong at most; infinite if not known."""
        by_clock = {id(one.clock): one.clock_uncertainty for one in self.ranks if one.steps}
        return sum(sorted(by_clock.values())[-2:])

    @property
    def deaths(self) -> list[Gone]:
        """Of workers that the others have outlived."""
        return each_once([one.deaths for one in self.ranks])

    @property
    def joinings(self) -> list[Joined]:
        """Of workers that were not there at the start."""
        return each_once([one.joinings for one in self.ranks])

    @property
    def starts(self) -> dict[int, dict[str, Any]]:
        """The `start` rows by rank."""
        return {one.rank: one.start for one in self.ranks}

    @property
    def replacements(self) -> list[tuple[Joined, Gone | None]]:
        """Those that joined, each with the death of the one in whose place it was started."""
        return [(one, replaced_by(one, self.deaths, self.starts, self.size)) for one in self.joinings]

    @property
    def newcomers(self) -> frozenset[int]:
        """The ranks of those that have left rows."""
        return frozenset(one.rank for one in self.ranks if one.is_newcomer)

    @property
    def steps(self) -> dict[int, list[Step]]:
        """By rank, of those that took any."""
        return {one.rank: one.steps for one in self.ranks if one.steps}

    @property
    def pauses(self) -> Spans:
        """The evaluations of all."""
        return Spans(span for one in self.ranks for span in one.evaluations.spans)

    def training_seconds(self, time: float) -> float:
        """Of training up to `time`, as the lowest rank that took steps has it. There is one."""
        return next(one for one in self.ranks if one.steps).training_seconds(time, self.begin)

    def merged(self) -> list[Merged]:
        """The rounds that were applied, with their gradients; none under strategies without a quorum."""
        told = {one.number: one for rank in self.ranks for one in rank.rounds}  # by the first rank that was left
        shards = max((_shards(one) for one in self.ranks), default=1)
        rounds = [of_workers(told[number], shards) for number in sorted(told)]
        moved_on = {one.rank: one.after_evaluation | ({1} if one.is_newcomer else set()) for one in self.ranks}
        return merged_in(rounds, self.steps, moved_on)

    @property
    def usual_warm_up(self) -> int:
        """The first steps that are no measure of the others: `WARM_UP_STEPS`, but no more than a tenth of all."""
        longest = max((len(one.steps) for one in self.ranks), default=0)
        return min(WARM_UP_STEPS, int(WARM_UP_SHARE * longest))

    @property
    def begin(self) -> float:
        """When training began: the first step of the lowest rank that took any. There is one."""
        return next(one.steps[0].begin for one in self.ranks if one.steps)

    def warm(self, warm_up: int) -> dict[int, list[Step]]:
        """By rank, the steps after the warm-up; only ranks that took any."""
        found = {one.rank: [step for step in one.steps if step.step > warm_up] for one in self.ranks}
        return {rank: steps for rank, steps in found.items() if steps}

    def after(self, warm_up: int) -> dict[int, list[Step]]:
        """By rank, the steps that measure: after the warm-up, and not next after an evaluation.

        Where evaluations are so frequent that this would leave out half of the steps, those after them count as well.
        """
        warm = self.warm(warm_up)
        paused = {one.rank: one.after_evaluation for one in self.ranks}
        calm = {rank: [step for step in steps if step.step not in paused[rank]] for rank, steps in warm.items()}
        is_most = 2 * sum(map(len, calm.values())) > sum(map(len, warm.values()))
        return {rank: steps for rank, steps in (calm if is_most else warm).items() if steps}


def read_run(folder: Path, *, only: Collection[int] | None = None, most_bytes: int | None = None) -> RunRecords:
    """Read the run in `folder`, whatever is there; of all ranks, or of some `only`.

    Of files longer than `most_bytes` only the first rows are read, and the last `most_bytes`.
    """
    ranks = [read_rank(folder, rank, most_bytes) for rank in ranks_in(folder) if only is None or rank in only]
    _align(ranks)
    _keep_first_optimizer(ranks)
    for one in ranks:
        _leave_out_evaluation(one)
    _leave_out_what_was_before(ranks)
    about, outcome = read_json(folder / "run.json") or {}, read_json(folder / "outcome.json")
    ended = None if outcome is None else sound_parts(outcome, OutcomeFile)
    return RunRecords(folder, sound_parts(about, RunFile), ended, tuple(ranks))


def _align(ranks: list[RankRecords]) -> None:
    """Put all ranks on one clock."""
    clocks = run_clocks({one.rank: one.start for one in ranks}, {one.rank: one.offsets for one in ranks})
    for one in ranks:
        one.move(clocks[one.rank])


def _keep_first_optimizer(ranks: list[RankRecords]) -> None:
    """Where a script distributes several optimizers, the steps of the first one are *the* steps."""
    names = [str(one.distributed["optimizer"]) for one in ranks if "optimizer" in one.distributed]
    names += [step.optimizer for one in ranks for step in one.steps[:1]]
    if not names:
        return
    first = names[0]
    for one in ranks:
        one.others = [step for step in one.steps if step.optimizer != first]
        if one.others:
            one.steps = [step for step in one.steps if step.optimizer == first]
        one.rounds = [merged for merged in one.rounds if merged.optimizer in (None, first)]
        one.served = [served for served in one.served if served.optimizer == first]
        number_the_rest(one.rounds)


def _leave_out_evaluation(one: RankRecords) -> None:
    """Let steps begin after the evaluations before them; what was computed then is no part of the step."""
    if not one.evaluations:
        return
    before = None
    for step in one.steps:
        since = step.begin if before is None else min(before, step.begin)
        inside = one.evaluations.between(step.begin, step.arrive)
        if inside > 0.0:
            step.begin += inside
            step.compute = max(0.0, min(step.compute, step.arrive - step.begin - step.data - step.delay))
        if inside > 0.0 or one.evaluations.between(since, step.arrive) > 0.0:
            one.after_evaluation.add(step.step)
        before = step.end


def _leave_out_what_was_before(ranks: list[RankRecords]) -> None:
    """While the first rank evaluated no worker trained, also where one had not joined yet."""
    for one in ranks:
        if one.is_newcomer and one.steps:
            first = one.steps[0].begin
            before = [(begin, min(end, first)) for begin, end in ranks[0].evaluations.spans if begin < first]
            one.evaluations = Spans([*before, *one.evaluations.spans])


def _shards(one: RankRecords) -> int:
    """Over how many workers its replica is spread."""
    found: Any = one.distributed.get("shards")
    return found if is_count(found) and found > 0 else 1
