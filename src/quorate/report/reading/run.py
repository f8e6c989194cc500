"""One run's folder as an object: `run.json`, `outcome.json`, and the rows of every rank on one clock.

Nothing here fails on what a run left behind: a file that is missing counts as empty, a row that is damaged or cut off
is skipped, ranks may have any number of steps. Cost: some 10 µs a row.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quorate.core.records import ranks_in, records_of, rows
from quorate.core.rows import Distance, Distribute, End, Evaluate, Gone, Joined, Log, Outer, Start, Step
from quorate.core.run_files import OutcomeFile, RunFile
from quorate.report.reading.ends import HEAD_BYTES, first_and_last_rows
from quorate.report.reading.events import each_once, moved
from quorate.report.reading.joinings import is_newcomer, replaced_by
from quorate.report.reading.rounds import (
    Merged,
    RoundRecord,
    merged_in,
    number_the_rest,
    number_updates,
    round_of,
    take_back,
)
from quorate.report.reading.rows import row_of, sound_parts
from quorate.report.reading.sessions import Sessions
from quorate.report.reading.sound import has_numbers, read_json
from quorate.report.reading.spans import Spans

WARM_UP_STEPS = 10
WARM_UP_SHARE = 0.1


@dataclass(slots=True)
class RankRecords:
    """What one rank left. Times are seconds on the clock of the run, the same for all ranks."""

    rank: int
    start: dict[str, Any] = field(default_factory=dict)
    distributed: dict[str, Any] = field(default_factory=dict)
    """What the first optimizer was given to."""
    steps: list[Step] = field(default_factory=list)
    """Of the first optimizer, in order; evaluation is not within any of them."""
    others: list[Step] = field(default_factory=list)
    """Of further optimizers."""
    rounds: list[RoundRecord] = field(default_factory=list)
    """Of the first optimizer; only the first rank that is left records them, under strategies with a quorum."""
    logs: list[Log] = field(default_factory=list)
    distances: list[Distance] = field(default_factory=list)
    outers: list[Outer] = field(default_factory=list)
    deaths: list[Gone] = field(default_factory=list)
    """Of other ranks, as this one told them."""
    joinings: list[Joined] = field(default_factory=list)
    """Likewise."""
    evaluations: Spans = field(default_factory=Spans)
    after_evaluation: set[int] = field(default_factory=set)
    """The numbers of the steps that came next after an evaluation: they wait for others who still evaluate."""
    end: dict[str, Any] | None = None
    """None where the worker did not live to write it."""

    @property
    def is_newcomer(self) -> bool:
        """Whether it joined when the run was under way: its step 1 is none of the others'."""
        return is_newcomer(self.start)

    def training_seconds(self, time: float, origin: float) -> float:
        """From `origin` to `time`, without this rank's evaluations."""
        return max(0.0, time - origin - (self.evaluations.before(time) - self.evaluations.before(origin)))


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
        rounds = [told[number] for number in sorted(told)]
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
    ranks = [_read_rank(folder, rank, most_bytes) for rank in ranks_in(folder) if only is None or rank in only]
    _align(ranks)
    _keep_first_optimizer(ranks)
    for one in ranks:
        _leave_out_evaluation(one)
    _leave_out_what_was_before(ranks)
    about, outcome = read_json(folder / "run.json") or {}, read_json(folder / "outcome.json")
    ended = None if outcome is None else sound_parts(outcome, OutcomeFile)
    return RunRecords(folder, sound_parts(about, RunFile), ended, tuple(ranks))


def _read_rank(folder: Path, rank: int, most_bytes: int | None) -> RankRecords:
    found = RankRecords(rank)
    spans: list[tuple[float, float]] = []
    fresh: list[RoundRecord] = []
    sessions = Sessions()
    path = records_of(folder, rank)
    is_long = most_bytes is not None and path.stat().st_size > most_bytes + HEAD_BYTES
    for row in first_and_last_rows(path, most_bytes) if is_long and most_bytes is not None else rows(path):
        row, kind = sessions.row(row), row["kind"]
        if kind == "step" and (step := row_of(Step, row)) is not None:
            pause = sessions.step(step, found)
            spans += [pause] if pause else []
            found.steps.append(step)
            number_updates([one for one in fresh if one.optimizer in (None, step.optimizer)], step)
            fresh = [one for one in fresh if one.optimizer not in (None, step.optimizer)]
        elif kind == "round" and (merged := round_of(row)) is not None:
            for rounds in (found.rounds, fresh):
                take_back(rounds, merged)
                rounds.append(merged)
        elif kind == "log" and (log := row_of(Log, row)) is not None:
            found.logs.append(log)
        elif kind == "distance" and (distance := row_of(Distance, row)) is not None:
            found.distances.append(distance)
        elif kind == "outer" and (outer := row_of(Outer, row)) is not None:
            found.outers.append(outer)
        elif kind == "gone" and (death := row_of(Gone, row)) is not None:
            found.deaths.append(death)
        elif kind == "joined" and (joining := row_of(Joined, row)) is not None:
            found.joinings.append(joining)
        elif kind == "evaluate" and (evaluate := row_of(Evaluate, row)) is not None:
            spans.append((evaluate.begin, evaluate.end))
        elif kind == "start" and not found.start:
            found.start = sound_parts(row, Start)
        elif kind == "distribute" and not found.distributed:
            found.distributed = sound_parts(row, Distribute)
        elif kind == "end":
            found.end = sound_parts(row, End)
    found.evaluations = Spans(spans)
    return found


def _align(ranks: list[RankRecords]) -> None:
    """Put all ranks on the clock of the first: hosts differ by what their clocks show at the same time of day."""
    clocks: dict[str, float] = {}
    for one in ranks:
        if has_numbers(one.start, "wall", "now"):
            clocks.setdefault(str(one.start.get("host")), one.start["wall"] - one.start["now"])
    if len(clocks) < 2:
        return
    reference = next(iter(clocks.values()))
    for one in ranks:
        shift = clocks.get(str(one.start.get("host")), reference) - reference
        if shift:
            for step in one.steps:
                step.begin, step.arrive, step.end = step.begin + shift, step.arrive + shift, step.end + shift
            for merged in one.rounds:
                merged.time += shift
            one.logs = moved(one.logs, shift)
            one.evaluations = one.evaluations.moved(shift)
            one.deaths, one.joinings = moved(one.deaths, shift), moved(one.joinings, shift)
            if one.end is not None and has_numbers(one.end, "time"):
                one.end["time"] += shift


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
