"""The machine: cores and threads, memory, shared memory, open files, folders, loopback, the token between hosts."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import tempfile
from pathlib import Path

from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.core.cache_folder import cache_folder
from quorate.wire.real.trust import LEAST_TOKEN

GIB = 2**30
WORKER_BYTES = 400 * 2**20
"""Resident memory of a worker with torch imported and a small model."""
_CGROUP = Path("/sys/fs/cgroup")
_MEMORY = Path("/proc/meminfo")


def usable_cores() -> int:
    """Return the number of cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores() -> Finding:
    """Judge the cores, with a container's quota: more threads than cores slow each other down."""
    usable, threads = usable_cores(), os.environ.get("OMP_NUM_THREADS")
    allowed, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    quota = int(allowed) / int(period) if allowed.isdigit() and period.isdigit() else float(usable)
    limit = "" if quota >= usable else f", a quota of {quota:g}"
    each = "1 thread a worker" if threads is None else f"OMP_NUM_THREADS={threads}"
    fact, available = f"{usable} usable{limit}; {each}", min(usable, quota)
    if threads is not None and not (threads.isdigit() and 0 < int(threads) <= available):
        return warn(fact, f"set OMP_NUM_THREADS to at most {available:g}, divided by the workers")
    if available < 2:
        return warn(fact, "workers take turns on one core: measure nothing here, or use --virtual")
    return ok(fact)


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


def memory() -> Finding:
    """Judge the memory; less than two workers need is a failure."""
    free, total = available_memory()
    workers = free // WORKER_BYTES
    fact = f"{_in_words(free)} of {_in_words(total)} available: some {workers} workers with small models"
    if workers < 2:
        return fail(fact, "end other programs, raise the container's limit, or use --virtual")
    return ok(fact) if workers >= 4 else warn(fact, "start no more workers than that, or use --virtual")


def shared_memory() -> Finding:
    """Judge /dev/shm: containers have 64 MiB by default, too little for the workers of a DataLoader."""
    if not os.path.isdir("/dev/shm"):
        return ok("not used on this system")
    free = shutil.disk_usage("/dev/shm").free
    fact = f"{_in_words(free)} free"
    return ok(fact) if free >= 64 * 2**20 else warn(fact, "start the container with --shm-size=1g or --ipc=host")


def open_files() -> Finding:
    """Judge the limit of open files: a worker has several for each other worker."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return ok("no limit")
    return ok(f"at most {limit}") if limit >= 1024 else warn(f"at most {limit}", "raise it: ulimit -n 4096")


def folders() -> Finding:
    """Judge the folders that a run writes to: records and sockets need one, caches do not."""
    cache = cache_folder()
    paths = {"records": Path("runs"), "temporary": Path(tempfile.gettempdir())} | ({"caches": cache} if cache else {})
    fixes = {"records": "work in a folder you may write to", "temporary": "set TMPDIR to a folder you may write to"}
    facts: list[str] = []
    failing: list[str] = []
    warning: list[str] = []
    for name, path in paths.items():
        folder, error = _tried(path)
        free = shutil.disk_usage(folder).free
        facts.append(f"{name} {path} ({error or f'{_in_words(free)} free'})")
        if error is not None:
            (failing if name in fixes else warning).append(fixes.get(name, "set XDG_CACHE_HOME to a folder of yours"))
        elif free < GIB:
            (failing if name in fixes and free < GIB // 10 else warning).append("free some disk space")
    for level, wrong in ((fail, failing), (warn, warning)):
        if wrong:
            return level(", ".join(facts), "; ".join(dict.fromkeys(wrong)))
    return ok(", ".join(facts))


def ports() -> Finding:
    """Judge loopback, over which processes meet."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(2)
            with socket.create_connection(listener.getsockname(), timeout=2):
                listener.accept()[0].close()
    except OSError as error:
        return fail(f"127.0.0.1: {error}", "bring it up: ip link set lo up; check the firewall")
    return ok("127.0.0.1 listens and connects")


def token() -> Finding:
    """Judge `QUORATE_TOKEN`, the secret that the hosts of a run share."""
    length = len(os.environ.get("QUORATE_TOKEN", "").strip())
    if "QUORATE_TOKEN" not in os.environ:
        return ok("QUORATE_TOKEN is not set; only runs on several hosts need it")
    if length < LEAST_TOKEN:
        fix = f"set {LEAST_TOKEN} characters or more, the same on every host: openssl rand -hex 32"
        return warn(f"QUORATE_TOKEN has {length} characters", fix)
    return ok(f"QUORATE_TOKEN has {length} characters")


def _tried(path: Path) -> tuple[Path, str | None]:
    """Return the folder in which `path` is, or would be made, and why nothing can be written there."""
    folder = path.absolute()
    while not folder.is_dir() and folder.parent != folder:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"quorate")
            file.flush()
    except OSError as error:
        return folder, f"not writable: {error.strerror}"
    return folder, None if folder == path.absolute() or not path.exists() else "no folder"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _in_words(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"
