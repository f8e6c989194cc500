"""A trace of `torch.profiler` on the timeline of a run: its operators and kernels beside our steps.

The profiler has the time of day (`baseTimeNanoseconds` plus `ts`, which is in microseconds), our rows the clock of
their worker, and a `start` row both at once. So the two differ by that row's two readings, some tens of microseconds,
and by changes of the time of day.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.report.reading.clocks import RunClock
from quorate.report.reading.sound import has_numbers

_PROCESSES = 1_000_000
"""The first process of the profiler: ranks are below."""
_FOR_PLUGIN = ("schemaVersion", "deviceProperties", "distributedInfo")
"""Keys that TensorBoard's plug-in for profiles reads beside the events."""

Event = dict[str, Any]


def _is_time(value: object) -> bool:
    """Return whether it is a number: a time of day in nanoseconds exceeds the bounds of our own rows."""
    return isinstance(value, int | float) and abs(value) < 1e19


@dataclass
class Profile:
    """The profiler's trace of `rank`; read whole, so it takes as much memory as it is long."""

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
