"""The load of the host, from when a worker joins until it leaves."""

from __future__ import annotations

import os
from dataclasses import dataclass

from quorate.records.host_rows import Load

_IDLE = (3, 4)
"""The places of idle time and of waiting for disks in a line of /proc/stat."""
_COUNTED = 8
"""The times in such a line before those of guests, which are contained in the first two."""


@dataclass
class HostLoad:
    """The counters of the host and of this process when the worker joined. Cost: some 100 µs at either end."""

    begun: float | None = None
    cpu_seconds: float = 0.0
    busy_seconds: float | None = None
    pressure_seconds: float | None = None

    def begin(self, now: float) -> None:
        """Read the counters; `now` is the time on the run's clock."""
        self.begun = now
        self.cpu_seconds, self.busy_seconds, self.pressure_seconds = _cpu(), _busy(), _pressure()

    def row(self, now: float) -> Load | None:
        """Return the row of the time since `begin`; None if it was not called, or no time has passed."""
        if self.begun is None or now <= self.begun:
            return None
        seconds = now - self.begun
        waited = _since(self.pressure_seconds, _pressure())
        return Load(
            time=now,
            seconds=seconds,
            cpu_seconds=_cpu() - self.cpu_seconds,
            cores=os.cpu_count() or 1,
            busy_seconds=_since(self.busy_seconds, _busy()),
            load_average=_load_average(),
            pressure=None if waited is None else min(1.0, waited / seconds),
        )


def _since(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def _cpu() -> float:
    return sum(os.times()[:4])


def _busy() -> float | None:
    """Return the CPU seconds of all processes since the start of the system; None without /proc/stat."""
    try:
        with open("/proc/stat", "rb") as file:
            ticks = [int(word) for word in file.readline().split()[1 : _COUNTED + 1]]
    except (OSError, ValueError):
        return None
    busy = sum(count for place, count in enumerate(ticks) if place not in _IDLE)
    return busy / os.sysconf("SC_CLK_TCK") if busy else None  # sandboxes without a kernel of their own write zeros


def _pressure() -> float | None:
    """Return the seconds in which some process waited for a core; None where Linux does not count them."""
    try:
        with open("/proc/pressure/cpu", encoding="ascii") as file:
            return int(file.readline().rpartition("total=")[2]) * 1e-6
    except (OSError, ValueError):
        return None


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
