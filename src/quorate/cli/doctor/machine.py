"""The machine: cores and threads, memory, shared memory, open files, folders, clocks."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.core.cache_folder import cache_folder

GIB = 2**30
A_WORKER = 400 * 2**20
"""Bytes of resident memory that a worker takes with torch imported and a small model."""
_CGROUP = Path("/sys/fs/cgroup")


class Folder(NamedTuple):
    """A folder that a run writes to."""

    purpose: str
    path: str
    error: str | None
    """Why nothing can be written there; None: it can."""
    free: int
    """Bytes."""


def usable_cores() -> int:
    """Return the number of cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def probe_cores() -> tuple[int, float | None, str | None]:
    """Return the usable cores, the container's quota in cores (None: no limit), and OMP_NUM_THREADS."""
    usable = usable_cores()
    allowed, _, period = (_read(_CGROUP / "cpu.max") or "max").partition(" ")
    quota = int(allowed) / int(period) if allowed.isdigit() and period.isdigit() else None
    return usable, quota, os.environ.get("OMP_NUM_THREADS")


def judge_cores(facts: tuple[int, float | None, str | None]) -> Finding:
    """Judge the cores: workers on one core take turns, and more threads than cores slow each other down."""
    usable, quota, threads = facts
    cores = usable if quota is None else min(float(usable), quota)
    sentence = f"{usable} usable" + ("" if quota is None else f", a quota of {quota:g}")
    threads_in_words = "not set: quorate run gives each worker 1 thread" if threads is None else threads
    sentence = f"{sentence}; OMP_NUM_THREADS {threads_in_words}"
    if threads is not None and not (threads.isdigit() and int(threads) > 0):
        return warn("cores", sentence, "unset OMP_NUM_THREADS, or set it to a whole number of threads")
    if threads is not None and int(threads) > cores:
        return warn("cores", sentence, f"set OMP_NUM_THREADS to at most the cores divided by the workers ({cores:g})")
    if cores < 2:
        return warn("cores", sentence, "workers take turns on one core: measure nothing here, or use --virtual")
    return ok("cores", sentence)


def probe_memory() -> tuple[int, int]:
    """Return the available and the total bytes of the machine or its container."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total, total
    sizes = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    total, free = sizes["MemTotal"], sizes.get("MemAvailable", sizes["MemFree"])
    limit, used = _read(_CGROUP / "memory.max") or "", _read(_CGROUP / "memory.current") or ""
    if limit.isdigit() and used.isdigit() and int(limit) < total:
        total, free = int(limit), min(free, max(0, int(limit) - int(used)))
    return free, total


def judge_memory(memory: tuple[int, int]) -> Finding:
    """Judge the memory; less than two workers need is a failure."""
    free, total = memory
    workers = free // A_WORKER
    sentence = f"{_in_words(free)} of {_in_words(total)} available, enough for some {workers} workers with small models"
    if workers < 2:
        return fail("memory", sentence, "end other programs, raise the container's limit, or use --virtual")
    if workers < 4:
        return warn("memory", sentence, "start no more workers than that, or use --virtual")
    return ok("memory", sentence)


def probe_shared_memory() -> int | None:
    """Return the free bytes of /dev/shm; None on systems without it."""
    return shutil.disk_usage("/dev/shm").free if sys.platform.startswith("linux") else None


def judge_shared_memory(free: int | None) -> Finding:
    """Judge /dev/shm: containers have 64 MiB by default, too little for the workers of a DataLoader."""
    if free is None:
        return ok("/dev/shm", "not used on this system")
    if free < 64 * 2**20:
        return warn("/dev/shm", f"{_in_words(free)} free", "start the container with --shm-size=1g (or --ipc=host)")
    return ok("/dev/shm", f"{_in_words(free)} free")


def probe_open_files() -> int:
    """Return the limit of open file descriptors of a process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def judge_open_files(limit: int) -> Finding:
    """Judge the limit of open files: a worker has several for each other worker."""
    if limit == resource.RLIM_INFINITY:
        return ok("open files", "no limit")
    if limit < 1024:
        return warn("open files", f"at most {limit}", "raise it before a run: ulimit -n 4096")
    return ok("open files", f"at most {limit}")


def probe_folders() -> list[Folder]:
    """Return the folders for records, sockets and caches, each after a trial of writing."""
    cache = cache_folder()
    places = [("records", Path("runs")), ("temporary files", Path(tempfile.gettempdir()))]
    return [_tried(purpose, path) for purpose, path in [*places, *([("caches", cache)] if cache else [])]]


def judge_folders(folders: Sequence[Folder]) -> Finding:
    """Judge the folders: records and sockets need one, caches do not."""
    sentence = "; ".join(
        f"{folder.purpose} in {folder.path}: {folder.error or f'{_in_words(folder.free)} free'}" for folder in folders
    )
    shut = [folder for folder in folders if folder.error]
    if any(folder.purpose != "caches" for folder in shut):
        fixes = {"records": "work in a folder you may write to", "temporary files": "set TMPDIR to such a folder"}
        return fail("folders", sentence, "; ".join(fixes[folder.purpose] for folder in shut if folder.purpose in fixes))
    if any(folder.free < GIB // 10 for folder in folders if folder.purpose != "caches"):
        return fail("folders", sentence, "free some disk space")
    if shut:
        return warn("folders", sentence, "set XDG_CACHE_HOME to a folder that can be written to")
    if any(folder.free < GIB for folder in folders):
        return warn("folders", sentence, "free some disk space")
    return ok("folders", sentence)


def probe_clocks() -> tuple[float, int, float]:
    """Return the least step of the clock, how often it went back, and the offset of another process's clock.

    Seconds; the other's reading must lie between two of ours, so that 0 says only that nothing can be seen.
    """
    readings = [time.monotonic() for _ in range(10_000)]
    steps = [late - early for early, late in itertools.pairwise(readings)]
    before = time.monotonic()
    completed = subprocess.run(
        [sys.executable, "-S", "-c", "import time; print(time.monotonic())"], capture_output=True, check=False
    )
    after = time.monotonic()
    other = float(completed.stdout or "nan")
    resolution = min((step for step in steps if step > 0), default=float("inf"))
    return resolution, sum(step < 0 for step in steps), max(before - other, other - after, 0.0)


def judge_clocks(facts: tuple[float, int, float]) -> Finding:
    """Judge the clock: records compare times of several processes, so they need one fine clock."""
    resolution, backwards, offset = facts
    sentence = f"steps of {resolution * 1e6:.2g} us"
    if backwards:
        return fail("clocks", f"{sentence}, and went back {backwards} times", "records cannot be trusted here")
    if not offset <= 1e-3:
        warning = f"{sentence}; another process's clock is {offset:.3g} s off"
        return warn("clocks", warning, "do not read arrival skew off this machine's records")
    if resolution > 1e-3:
        return warn("clocks", sentence, "times below a millisecond mean nothing in records of this machine")
    return ok("clocks", f"{sentence}; one clock for all processes")


def _tried(purpose: str, path: Path) -> Folder:
    there = path.absolute()
    while not there.is_dir() and there.parent != there:
        there = there.parent  # a folder that is not there yet is made in the nearest one that is
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"quorate")
            file.flush()
        error = None if there == path.absolute() or not path.exists() else f"{path} is no folder"
    except OSError as failed:
        error = f"not writable ({failed.strerror})"
    return Folder(purpose, str(path), error, shutil.disk_usage(there).free)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def _in_words(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"
