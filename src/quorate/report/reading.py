"""One run's folder as an object: `run.json`, `outcome.json`, and the rows of every rank on one clock.

Nothing here fails on what a run left behind: a file that is missing counts as empty, a row that is damaged or cut off
is skipped, ranks may have any number of steps. Cost: some 10 µs a row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from quorate.core.records import Step, ranks_in, records_of, rows
from quorate.report.rounds import Merged, Round, merged_in, number_the_rest, number_updates, round_of
from quorate.report.spans import Spans

WARM_UP_STEPS = 10
WARM_UP_SHARE = 0.1
_HEAD_BYTES = 2048
_STEP_FIELDS = frozenset(field.name for field in fields(Step))
_NUMBERS = {"step": int, "round": int, "begin": float, "arrive": float, "end": float}


@dataclass(frozen=True, slots=True)
class Logged:
    """One `log` row."""

    step: int
    time: float
    values: Mapping[str, Any]


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
    rounds: list[Round] = field(default_factory=list)
    """Of the first optimizer; only rank 0 records them, under strategies with a quorum."""
    logs: list[Logged] = field(default_factory=list)
    evaluations: Spans = field(default_factory=Spans)
    after_evaluation: set[int] = field(default_factory=set)
    """The numbers of the steps that came next after an evaluation: they wait for others who still evaluate."""
    end: dict[str, Any] | None = None
    """None where the worker did not live to write it."""

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
        status = (self.outcome or {}).get("status")
        return status if type(status) is int else None

    @property
    def has_steps(self) -> bool:
        return any(one.steps for one in self.ranks)

    @property
    def is_virtual(self) -> bool:
        return any(one.start.get("clock") == "virtual" for one in self.ranks)

    def merged(self) -> list[Merged]:
        """The rounds that were applied, with their gradients; none under strategies without a quorum."""
        rounds = next((one.rounds for one in self.ranks if one.rounds), [])
        steps = {one.rank: one.steps for one in self.ranks if one.steps}
        return merged_in(rounds, steps, {one.rank: one.after_evaluation for one in self.ranks})

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
    return RunRecords(folder, read_json(folder / "run.json") or {}, read_json(folder / "outcome.json"), tuple(ranks))


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is no file, or no object in it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def step_of(row: dict[str, Any]) -> Step | None:
    """A `step` row as an object; None where what every step has is missing. Later formats may say more."""
    row.pop("kind", None)
    try:
        step = Step(**row)
    except TypeError:
        try:
            step = Step(**{key: value for key, value in row.items() if key in _STEP_FIELDS})
        except TypeError:
            return None
    is_whole = type(step.begin) is float and type(step.arrive) is float and type(step.end) is float
    return step if is_whole or _repaired(step) else None


def _repaired(step: Step) -> bool:
    """Make whole numbers of seconds floats; whether that is enough."""
    for name, kind in _NUMBERS.items():
        value = getattr(step, name)
        if type(value) is not kind:
            if type(value) not in (int, float):
                return False
            setattr(step, name, kind(value))
    return True


def _ends(path: Path, most_bytes: int) -> Iterator[dict[str, Any]]:
    """The first and the last rows of a long file; the two that are cut are skipped."""
    with open(path, "rb") as file:
        lines = file.read(_HEAD_BYTES).splitlines()
        file.seek(-most_bytes, os.SEEK_END)
        lines += file.read().splitlines()
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "kind" in row:
            yield row


def _read_rank(folder: Path, rank: int, most_bytes: int | None) -> RankRecords:
    found = RankRecords(rank)
    spans = []
    fresh: list[Round] = []
    path = records_of(folder, rank)
    is_long = most_bytes is not None and path.stat().st_size > most_bytes + _HEAD_BYTES
    for row in _ends(path, most_bytes) if is_long and most_bytes is not None else rows(path):
        kind = row["kind"]
        if kind == "step":
            step = step_of(row)
            if step is not None:
                found.steps.append(step)
                number_updates([one for one in fresh if one.optimizer in (None, step.optimizer)], step)
                fresh = [one for one in fresh if one.optimizer not in (None, step.optimizer)]
        elif kind == "round":
            merged = round_of(row)
            if merged is not None:
                found.rounds.append(merged)
                fresh.append(merged)
        elif kind == "log" and _has_numbers(row, "step", "time") and isinstance(row.get("values"), dict):
            found.logs.append(Logged(row["step"], row["time"], row["values"]))
        elif kind == "evaluate" and _has_numbers(row, "begin", "end"):
            spans.append((row["begin"], row["end"]))
        elif kind == "start" and not found.start:
            found.start = row
        elif kind == "distribute" and not found.distributed:
            found.distributed = row
        elif kind == "end":
            found.end = row
    found.evaluations = Spans(spans)
    return found


def _has_numbers(row: Mapping[str, Any], *names: str) -> bool:
    return all(type(row.get(name)) in (int, float) for name in names)


def _align(ranks: list[RankRecords]) -> None:
    """Put all ranks on the clock of the first: hosts differ by what their clocks show at the same time of day."""
    clocks: dict[str, float] = {}
    for one in ranks:
        if _has_numbers(one.start, "wall", "now"):
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
            one.logs = [Logged(log.step, log.time + shift, log.values) for log in one.logs]
            one.evaluations = one.evaluations.moved(shift)
            if one.end is not None and _has_numbers(one.end, "time"):
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
