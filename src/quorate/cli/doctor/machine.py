"""The machine and its software: cores, memory, open files, folders, loopback for so many workers; packages."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import tempfile
from importlib import metadata
from pathlib import Path

from quorate.cli.choices import WORKER_BYTES, files_needed
from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.core.installed import requirements, version_of
from quorate.core.resources import available_memory, cache_folder, quota_of_cores, usable_cores
from quorate.report.wording import bytes_in_words


def cores(workers: int) -> Finding:
    """Judge the cores, with a container's quota: more threads than cores slow each other down."""
    usable, quota, threads = usable_cores(), quota_of_cores(), os.environ.get("OMP_NUM_THREADS")
    available = min(usable, quota)
    limit = f", a quota of {quota:g}" if quota < usable else ""
    each = "1 thread a worker" if threads is None else f"OMP_NUM_THREADS={threads}"
    fact = f"{usable} usable{limit}; {each}"
    if available < workers:
        return warn(fact, f"{workers} workers take turns: measure nothing with them here, or use --virtual")
    if threads is not None and not (threads.isdigit() and 0 < int(threads) * workers <= available):
        return warn(fact, f"set OMP_NUM_THREADS to at most {int(available / workers)} for {workers} workers")
    return ok(fact)


def memory(workers: int) -> Finding:
    """Judge the memory; less than small models need is a failure."""
    free, total = available_memory()
    most = free // WORKER_BYTES
    fact = f"{bytes_in_words(free)} of {bytes_in_words(total)} available: some {most} workers with small models"
    return ok(fact) if workers <= most else fail(fact, "end other programs, raise the container's limit, or --virtual")


def shared_memory(gpus: int) -> Finding:
    """Judge /dev/shm, which NCCL uses between GPUs. Containers have 64 MiB by default."""
    if not os.path.isdir("/dev/shm"):
        return ok("not used on this system")
    free = shutil.disk_usage("/dev/shm").free
    fact, fix = f"{bytes_in_words(free)} free", "start the container with --shm-size=1g or --ipc=host"
    if free >= 64 * 2**20:
        return ok(fact)
    return warn(fact, fix) if gpus > 1 else ok(f"{fact}; for a DataLoader with workers, {fix}")


def open_files(workers: int) -> Finding:
    """Judge the limit of open files: a worker has several for each other worker."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return ok("no limit")
    needed = files_needed(workers)
    return ok(f"at most {limit}") if limit >= needed else warn(f"at most {limit}", f"raise it: ulimit -n {needed}")


def folders() -> Finding:
    """Judge the folders that a run writes to: records and sockets need one, caches only save time."""
    paths = {"records": Path("runs"), "temporary": Path(tempfile.gettempdir()), "caches": cache_folder()}
    fixes = {"records": "work in a folder you may write to", "temporary": "set TMPDIR to a folder you may write to"}
    facts, failing, has_little = [], [], False
    for name, path in paths.items():
        if path is not None:
            folder, error = _tried(path)
            free = shutil.disk_usage(folder).free
            facts.append(f"{name} {path} ({error or f'{bytes_in_words(free)} free'})")
            if name in fixes and (error is not None or free < 1e8):
                failing.append("free some disk space" if error is None else fixes[name])
            has_little |= name in fixes and free < 1e9
    fact = ", ".join(facts)
    if failing:
        return fail(fact, "; ".join(dict.fromkeys(failing)))
    return warn(fact, "free some disk space") if has_little else ok(fact)


def ports() -> Finding:
    """Judge loopback, over which processes meet."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            socket.create_connection(listener.getsockname(), timeout=2).close()
    except OSError as error:
        return fail(f"127.0.0.1: {error}", "bring it up: ip link set lo up; check the firewall")
    return ok("127.0.0.1 listens and connects")


def _tried(path: Path) -> tuple[Path, str | None]:
    """Return the folder in which `path` is, or would be made, and why nothing can be written there."""
    folder = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.is_dir())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"quorate")
            file.flush()
    except OSError as error:
        return folder, f"not writable: {error.strerror}"
    return folder, None if folder == path.absolute() or not path.exists() else "no folder"


def packages() -> Finding:
    """Judge the versions of the packages that are always needed."""
    needed = [(package, version_of(package), admitted) for package, admitted, extra in requirements() if not extra]
    wrong = [entry for entry in needed if entry[1] is None or not admits(entry[2], entry[1])]
    if wrong:
        words = [f"{package} {version or 'is missing'} ({admitted})" for package, version, admitted in wrong]
        names = [f"'{package}{admitted}'" for package, _, admitted in wrong]
        return fail(", ".join(words), f"pip install {' '.join(names)}")
    known = ", ".join(f"{package} {version}" for package, version, _ in needed)
    return ok(known or "not known: Quorate runs from its source, without being installed")


def extras() -> Finding:
    """List the extras whose packages are installed, and the others; a missing one is no fault."""
    needed = [(extra, version_of(package)) for package, _, extra in requirements() if extra not in ("", "dev")]
    lacking = dict.fromkeys(extra for extra, version in needed if version is None)
    present = ", ".join(dict.fromkeys(extra for extra, _ in needed if extra not in lacking)) or "none"
    return ok(f"{present}; without {', '.join(lacking)}" if lacking else present)


def namesake() -> Finding:
    """Warn of the other program that is called `quorate` on PyPI, if it is installed beside `torch-quorate`."""
    versions = {about.metadata["Name"]: about.version for about in metadata.distributions()}
    if {"quorate", "torch-quorate"} <= versions.keys():
        fact = f"quorate {versions['quorate']} is another program, and overwrites files of torch-quorate"
        return warn(fact, "pip uninstall quorate torch-quorate, then install Quorate from its clone again")
    return ok("no other program is called quorate")


def admits(admitted: str, version: str) -> bool:
    """Return whether the release of `version` is within the clauses `admitted`, such as `<2.14,>=2.10`."""
    bounds = {sign: _numbers(bound) for sign, bound in re.findall(r"(>=|<)([\d.]+)", admitted)}
    return bounds.get(">=", ()) <= _numbers(version) and ("<" not in bounds or _numbers(version) < bounds["<"])


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release numbers without zeros at the end: 2.0 is 2."""
    release = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(map(int, re.sub(r"(\.0+)+$", "", release.group()).split("."))) if release else ()
