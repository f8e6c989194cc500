"""The timeline of a run as Chrome trace JSON, which Perfetto and chrome://tracing show.

One process per rank. Its track "steps" has a slice for every step with its figures, and its track "activity" has the
parts of the time. Loss and bytes are counters; values that the script logged are instants. Times are microseconds since
the first step began, of all ranks on one clock.

Records have the length of each activity of a step, not its time. A slice has data at the beginning, then delay and
compute up to the arrival at the meeting point (a delay is really spent between forward and backward). Then follow
encode, waiting for others, communication, decode, update, and other time up to the end.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from quorate.core.errors import ConfigurationError
from quorate.records.records import ranks_in, records_of, rows
from quorate.records.rows import ClockOffset, Start, Step
from quorate.report.reading.clocks import RunClock, run_clocks
from quorate.report.reading.rank import Sessions
from quorate.report.reading.rounds import Merged
from quorate.report.reading.run import read_run
from quorate.report.reading.sound import finite, has_numbers, row_of, sound_parts

LAYOUT = (
    "within a step, lengths are recorded and positions are not. Data is first, then the bubble of a pipeline (waiting "
    "for other stages), delay and compute up to the arrival, then encode, waiting, communication, decode, update"
)
_EVALUATION = 1
"""The track of evaluations; those of optimizers come after it, two for each."""
_SHOWN = ("loss", "examples", "tokens", "bytes_out", "bytes_in", "contributors", "staleness")
_OF_STAGES = ("bubble", "stage_out", "stage_in")
"""Further figures of the steps of pipelines."""
_CHANGES = {"gone": "died", "joined": "joined"}
"""Words for the rows of changes of ranks."""

_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_COMPRESSION = 5
_PROCESSES = 1_000_000
"""The first process of the profiler: ranks are below."""
_FOR_PLUGIN = ("schemaVersion", "deviceProperties", "distributedInfo")
"""Keys that TensorBoard's plug-in for profiles reads beside the events."""

Event = dict[str, Any]
Key = tuple[str, int, int]
"""A meeting: the optimizer, the round, and the number of a rank's step within that round."""


@dataclass(frozen=True)
class Survey:
    """The result of `survey`. Times are seconds on the clock of all ranks."""

    first: float
    """The time of the first event."""
    last: Mapping[Key, tuple[float, int]]
    """The last arrival that was waited for at each meeting, and its rank."""
    rounds: list[Merged]
    """Rounds under a quorum."""
    has_steps: bool


@dataclass
class Keys:
    """Counts one rank's steps within rounds."""

    newest: dict[str, tuple[int, int]] = field(default_factory=dict)

    def of(self, step: Step) -> Key:
        """Return the meeting of the next step of this rank."""
        before, place = self.newest.get(step.optimizer, (None, 0))
        place = place + 1 if before == step.round else 0
        self.newest[step.optimizer] = (step.round, place)
        return step.optimizer, step.round, place


def heads_of(folder: Path) -> tuple[dict[int, dict[str, Any]], dict[int, RunClock]]:
    """Return by rank the sound parts of the first `start` row, and its clock."""
    starts: dict[int, dict[str, Any]] = {}
    offsets: dict[int, list[ClockOffset]] = {}
    for rank in ranks_in(folder):
        starts[rank], offsets[rank] = {}, []
        sessions = Sessions()
        for row in map(sessions.row, rows(records_of(folder, rank), ("start", "clock"))):
            if row["kind"] == "start" and not starts[rank]:
                starts[rank] = sound_parts(row, Start)
            offset = row_of(ClockOffset, row) if row["kind"] == "clock" and not sessions.is_moved else None
            if offset is not None:
                offsets[rank].append(offset)
    return starts, run_clocks(starts, offsets)


def survey(folder: Path, clocks: Mapping[int, RunClock]) -> Survey:
    """Read all rows once; `clocks` are those of the ranks.

    Where everybody waits for everybody, those that met waited for the last of them. Under a quorum they waited for the
    last gradient of their round; to find it, all steps are kept in memory.
    """
    first = math.inf
    last: dict[Key, tuple[float, int]] = {}
    has_rounds = False
    for rank, clock in clocks.items():
        keys = Keys()
        for row in rows(records_of(folder, rank)):
            times = [clock.at(row[name]) for name in ("begin", "time") if has_numbers(row, name)]
            first = min([first, *times])
            has_rounds |= row["kind"] == "round"
            step = row_of(Step, row) if row["kind"] == "step" else None
            if step is not None:
                key, arrive = keys.of(step), clock.at(step.arrive)
                if key not in last or arrive > last[key][0]:
                    last[key] = (arrive, rank)
    if not has_rounds:
        return Survey(first, last, [], bool(last))
    rounds = read_run(folder).merged()
    return Survey(first, _last_of(rounds), rounds, bool(last))


def _last_of(rounds: list[Merged]) -> dict[Key, tuple[float, int]]:
    return {
        (last.step.optimizer, round.round.update, 0): (last.step.arrive, last.rank)
        for round in rounds
        if round.gradients and round.round.update is not None
        for last in [max(round.gradients, key=lambda gradient: gradient.step.arrive)]
    }


@dataclass(frozen=True)
class Written:
    """The file that was written."""

    path: Path
    ranks: int
    steps: int
    """Steps of all ranks together."""
    events: int


def write_trace(folder: Path, path: Path, profiles: Sequence[Profile] = ()) -> Written:
    """Write the timeline of the run in `folder` to `path`: compressed if its name ends in .gz.

    Reads the rows twice, one by one; memory grows with the rounds, not with the ranks. The file appears when it is
    complete. `profiles` of torch's profiler stand beside their ranks. Raises `ConfigurationError` if no step was
    recorded, and for a profile of a rank that has left no records.
    """
    starts, clocks = heads_of(folder)
    facts = survey(folder, clocks)
    if not facts.has_steps:
        raise ConfigurationError(f"there is nothing to show: no worker has recorded a step in {folder}")
    for profile in profiles:
        if profile.rank not in starts:
            raise ConfigurationError(f"--profile: rank {profile.rank} has left no records in {folder}")
    steps = events = 0
    with _opened(path) as file:
        about = {"run": folder.resolve().name, "layout": LAYOUT}
        head: dict[str, Any] = {"displayTimeUnit": "ms", "otherData": about}
        head |= profiles[0].for_plugin if profiles else {}
        file.write(f'{_JSON.encode(head)[:-1]},"traceEvents":[\n')
        for rank, start in starts.items():
            lane = _Lane(rank, str(start.get("host", "unknown host")), clocks[rank], facts)
            for event in lane.events(records_of(folder, rank)):
                file.write(",\n" if events else "")
                file.write(_JSON.encode(event))
                events += 1
            steps += lane.steps
        for number, profile in enumerate(profiles):
            rank = profile.rank
            for event in profile.events(starts[rank], clocks[rank], facts.first, number):
                file.write(",\n" if events else "")
                file.write(json.dumps(event, separators=(",", ":")))
                events += 1
        file.write("\n]}\n")
    return Written(path, len(starts), steps, events)


def activities(begin: int, arrive: int, end: int, step: Step, waiting: int) -> list[tuple[str, int, int]]:
    """Return the parts of a step's time: (activity, begin, end) one after the other, in whole microseconds.

    `waiting` is the wait for the last to arrive. Parts that do not fit (lengths are rounded) are cut off; remaining
    time is "other"; empty parts are left out.
    """
    data, delay, compute = _micro(step.data), _micro(step.delay), _micro(step.compute)
    data = min(data, arrive - begin)
    compute = min(compute, arrive - begin - data)
    delay = min(delay, arrive - begin - data - compute)
    bubble = min(_micro(step.bubble or 0.0), arrive - begin - data - delay - compute)
    wait = max(0, _micro(step.wait) - bubble)
    waiting = max(0, min(waiting, wait))
    other = arrive - begin - data - delay - compute - bubble
    parts = [("data", data), ("other", other), ("bubble", bubble), ("delay", delay), ("compute", compute)]
    after = {"encode": _micro(step.encode), "waiting": waiting, "communication": wait - waiting}
    left = end - arrive
    for name, length in (*after.items(), ("decode", _micro(step.decode)), ("update", _micro(step.update))):
        parts.append((name, min(length, left)))
        left -= parts[-1][1]
    parts.append(("other", left))
    spans, at = [], begin
    for name, length in parts:
        if length > 0:
            spans.append((name, at, at + length))
        at += max(0, length)
    return spans


def _age(gradients: tuple[int, int]) -> str:
    """Return `2 fresh`, `1 of staleness 3`."""
    staleness, count = gradients
    return f"{count} of staleness {staleness}" if staleness else f"{count} fresh"


def _micro(seconds: float) -> int:
    return round(max(0.0, seconds) * 1e6)


@dataclass
class _Lane:
    """The events of one rank."""

    rank: int
    host: str
    clock: RunClock
    survey: Survey
    steps: int = 0
    _keys: Keys = field(default_factory=Keys)
    _optimizers: list[str] = field(default_factory=list)
    _evaluates: bool = False

    def events(self, path: Path) -> Iterator[Event]:
        """Yield all events of the rank; on each track they are in order of time, and slices do not overlap."""
        yield self._named("process_name", 0, f"rank {self.rank} ({self.host})")
        yield {"ph": "M", "name": "process_sort_index", "pid": self.rank, "tid": 0, "args": {"sort_index": self.rank}}
        for update in self.survey.rounds if self.rank == 0 else ():
            yield self._round(update)
        for row in rows(path):
            kind = row["kind"]
            step = row_of(Step, row) if kind == "step" else None
            if step is not None:
                yield from self._step(step)
            elif kind == "evaluate" and has_numbers(row, "begin", "end"):
                yield from self._evaluation(row)
            elif isinstance(kind, str) and kind in _CHANGES and has_numbers(row, "time", "rank"):
                yield self._changed(row)
            elif kind == "log" and has_numbers(row, "time") and isinstance(row.get("values"), dict):
                yield self._instant("log", "p", self._at(row["time"]), finite(row["values"]))

    def _round(self, update: Merged) -> Event:
        taken = {f"rank {rank}": ", ".join(map(_age, counts)) for rank, counts in update.round.taken.items()}
        args = {"round": update.round.update, "contributors": len(taken), **taken}
        return self._instant("round", "g", _micro(update.formed - self.survey.first), args)

    def _changed(self, row: Mapping[str, Any]) -> Event:
        args = finite({name: value for name, value in row.items() if name not in ("kind", "time")})
        name = f"rank {row['rank']} {_CHANGES[row['kind']]}"
        return self._instant(name, "g", self._at(row["time"]), args)

    def _step(self, step: Step) -> Iterator[Event]:
        self.steps += 1
        if step.optimizer not in self._optimizers:
            self._optimizers.append(step.optimizer)
            yield from self._tracks(step.optimizer)
        number = self._optimizers.index(step.optimizer)
        track, suffix = _EVALUATION + 1 + 2 * number, f" ({step.optimizer})" if number else ""
        begin, arrive, end = (self._at(time) for time in (step.begin, step.arrive, step.end))
        alone = (self.clock.at(step.arrive), self.rank)  # rows that came while this is being read are known to nobody
        latest, who = self.survey.last.get(self._keys.of(step), alone)
        numbers = {"step": step.step, "round": step.round}
        names = _SHOWN if step.bubble is None else (*_SHOWN, *_OF_STAGES)
        shown = {name.replace("_", " "): getattr(step, name) for name in names}
        yield self._slice(f"step {step.step}", track, begin, end, {**numbers, **finite(shown)})
        for name, start, stop in activities(begin, arrive, end, step, _micro(latest - self.survey.first) - arrive):
            args = {**numbers, "waited for": f"rank {who}"} if name == "waiting" else numbers
            yield self._slice(name, track + 1, start, stop, args)
        counted = {"ph": "C", "pid": self.rank, "tid": 0, "ts": end}
        if step.loss is not None and math.isfinite(step.loss):
            yield {**counted, "name": f"loss{suffix}", "args": {"loss": step.loss}}
        yield {**counted, "name": f"bytes{suffix}", "args": {"out": step.bytes_out, "in": step.bytes_in}}
        if step.bubble is not None and step.end > step.begin:
            share = step.bubble / (step.end - step.begin)
            yield {**counted, "name": f"bubble{suffix}", "args": {"share": round(share, 4)}}

    def _evaluation(self, row: Mapping[str, Any]) -> Iterator[Event]:
        if not self._evaluates:
            self._evaluates = True
            yield self._named("thread_name", _EVALUATION, "evaluation")
        begin, end = self._at(row["begin"]), self._at(row["end"])
        yield self._slice("evaluate", _EVALUATION, begin, end, finite({"step": row.get("step")}))

    def _tracks(self, optimizer: str) -> Iterator[Event]:
        track = _EVALUATION + 2 * len(self._optimizers) - 1
        suffix = f" of optimizer {optimizer}" if len(self._optimizers) > 1 else ""
        yield self._named("thread_name", track, f"steps{suffix}")
        yield self._named("thread_name", track + 1, f"activity{suffix}")

    def _named(self, kind: str, track: int, name: str) -> Event:
        return {"ph": "M", "name": kind, "pid": self.rank, "tid": track, "args": {"name": name}}

    def _instant(self, name: str, scope: str, at: int, args: Event) -> Event:
        return {"ph": "i", "s": scope, "name": name, "pid": self.rank, "tid": 0, "ts": at, "args": args}

    def _slice(self, name: str, track: int, begin: int, end: int, args: Event) -> Event:
        length = max(0, end - begin)
        return {"ph": "X", "name": name, "pid": self.rank, "tid": track, "ts": begin, "dur": length, "args": args}

    def _at(self, time: float) -> int:
        return _micro(self.clock.at(time) - self.survey.first)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Open a text file that replaces `path` at the end; equal contents are equal bytes, compressed or not."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as raw:
            if path.suffix == ".gz":
                with (
                    gzip.GzipFile("", "wb", _COMPRESSION, raw, mtime=0) as packed,
                    io.TextIOWrapper(packed, "utf-8") as text,
                ):
                    yield text
            else:
                with io.TextIOWrapper(raw, "utf-8") as text:
                    yield text
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _is_time(value: object) -> bool:
    """Return whether it is a number: a time of day in nanoseconds exceeds the bounds of our own rows."""
    return isinstance(value, int | float) and abs(value) < 1e19


@dataclass
class Profile:
    """The trace of `rank` by `torch.profiler`; read whole, so it takes as much memory as it is long.

    The profiler has the time of day (`baseTimeNanoseconds` plus `ts`, which is in microseconds), our rows the clock of
    their worker, and a `start` row both at once. So the two differ by that row's two readings, some tens of
    microseconds, and by changes of the time of day.
    """

    rank: int
    about: dict[str, Any]
    """The document without the events."""
    _events: list[Event]
    _numbers: dict[object, int] = field(default_factory=dict)

    @classmethod
    def read(cls, rank: int, path: Path) -> Profile:
        """Read a trace; raises `ConfigurationError` for a file that is none."""
        try:
            data = path.read_bytes()
            document = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
        except (OSError, EOFError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"--profile {rank}={path} cannot be read: {why}") from None
        events = document.get("traceEvents") if isinstance(document, dict) else None
        if not isinstance(events, list) or not _is_time(document.get("baseTimeNanoseconds")):
            raise ConfigurationError(
                f"--profile {rank}={path} is not a trace of torch.profiler: it has no traceEvents, or no "
                "baseTimeNanoseconds; export_chrome_trace of torch 2.4 or later writes both"
            )
        about = {key: value for key, value in document.items() if key != "traceEvents"}
        return cls(rank, about, [event for event in events if isinstance(event, dict)])

    @property
    def for_plugin(self) -> dict[str, Any]:
        """The keys of the document that TensorBoard's plug-in needs."""
        return {key: self.about[key] for key in _FOR_PLUGIN if key in self.about}

    def events(self, start: Mapping[str, Any], clock: RunClock, first: float, number: int) -> Iterator[Event]:
        """Yield its events in microseconds after `first`; those that began before are left out.

        `start` is the rank's `start` row, and `number` counts the profiles from 0: processes, and arrows between
        events, have their own numbers in each. Raises `ConfigurationError` for a virtual worker.
        """
        if not has_numbers(start, "now", "wall"):
            raise ConfigurationError(f"--profile: rank {self.rank} has no time of day in its records; is it virtual?")
        # The difference first: a time of day in seconds has no more than a quarter of a microsecond in 64 bits.
        shift = float(start["now"]) + (self.about["baseTimeNanoseconds"] * 1e-9 - float(start["wall"]))
        processes = _PROCESSES * (number + 1)
        seen: set[int] = set()
        for event in self._events:
            kind, process = event.get("ph"), processes + self._number(("pid", event.get("pid")))
            moved = {**event, "pid": process, "tid": self._number(("tid", event.get("tid")))}
            if kind == "M":
                moved.pop("ts", None)
                if event.get("name") == "process_name":
                    continue
            elif _is_time(event.get("ts")):
                at = clock.at(event["ts"] * 1e-6 + shift) - first
                if at < 0.0:
                    continue
                moved["ts"] = round(at * 1e6, 3)
            else:
                continue
            if "id" in event:
                moved["id"] = f"{number}/{event['id']}"
            if process not in seen:
                seen.add(process)
                yield self._named(process, event.get("pid"))
            yield moved

    def _number(self, name: object) -> int:
        """A whole number for a process or thread, which the profiler may name by a word."""
        return self._numbers.setdefault(name, len(self._numbers) + 1)

    def _named(self, process: int, name: object) -> Event:
        args = {"name": f"rank {self.rank}, torch.profiler ({name})"}
        return {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": args}
