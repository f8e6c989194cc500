"""The cores and the memory that this process may use, with the limits of containers; and the folder of its caches."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMORY = Path("/proc/meminfo")


def usable_cores() -> int:
    """Return the number of cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def quota_of_cores() -> float:
    """Return the cores' worth of time that a container may use; infinite without a quota."""
    allowed, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    return int(allowed) / int(period) if allowed.isdigit() and period.isdigit() else float("inf")


def available_memory() -> tuple[int, int]:
    """Return the available and the total bytes of the machine or its container."""
    lines = _read(_MEMORY).splitlines()
    if not lines:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total, total
    sizes = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    total, free = sizes["MemTotal"], sizes.get("MemAvailable", sizes["MemFree"])
    limit, used = _read(_CGROUP / "memory.max"), _read(_CGROUP / "memory.current")
    if limit.isdigit() and used.isdigit() and int(limit) < total:
        total, free = int(limit), min(free, max(0, int(limit) - int(used)))
    return free, total


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def cache_folder() -> Path | None:
    """`$XDG_CACHE_HOME/quorate`, or `~/.cache/quorate`; None where there is no home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):  # the XDG standard: relative ones are ignored
        return Path(named) / "quorate"
    try:
        return Path.home() / ".cache" / "quorate"
    except RuntimeError:
        return None
