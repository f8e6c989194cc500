"""Folders for socket files, in the system's temporary folder: made, and removed when their maker has ended.

A launcher that is killed leaves its folder behind. Its name identifies the maker:
`quorate-<system>-<process>-<start of the process>-<random>`. The next one that is made removes those of dead
processes first, but none that may belong to another user, machine or container, or whose maker cannot be
identified.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

LONGEST_PATH = 100
"""Longest path of a Unix socket that every system accepts, in bytes."""
_PREFIX = "quorate-"
_LONGEST_NAME = "quorate-12345678-4194304-123456789012-12345678/mail-100-100000"
_NAME = re.compile(r"quorate-([0-9a-f]{8})-(\d+)-(\d+)-[A-Za-z0-9_]+")


def make_socket_folder(label: str | None = None, *, of: int | None = None) -> Path:
    """Make a folder of mode 0700 whose path is short enough for sockets; the caller removes it.

    `find_socket_folder` finds it by its `label`. It is kept as long as the process `of` lives, by default this
    one.
    """
    place = _place()
    clear_abandoned(place)
    pid = os.getpid() if of is None else of
    prefix = f"{_PREFIX}{_system()}-{pid}-{started(pid) or 0}-"
    if label is None:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    folder = place / f"{prefix}{_digest(label)}"
    folder.mkdir(mode=0o700)
    return folder


def find_socket_folder(label: str) -> Path | None:
    """Return the folder with this `label` of a living process of this user on this machine; None: there is none."""
    place, end = _place(), f"-{_digest(label)}"
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match is None or match[1] != _system() or not entry.name.endswith(end) or _is_abandoned(entry):
                continue
            status = entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
                return Path(entry.path)
    return None


def _place() -> Path:
    place = tempfile.gettempdir()
    return Path("/tmp" if len(os.fsencode(place)) > LONGEST_PATH - len(_LONGEST_NAME) - 1 else place)


def _digest(label: str) -> str:
    return hashlib.sha256(label.encode()).hexdigest()[:8]


def clear_abandoned(place: Path) -> list[Path]:
    """Remove and return the folders in `place` whose maker is certainly dead. Raises nothing."""
    removed: list[Path] = []
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if _is_abandoned(entry):
                shutil.rmtree(entry.path, ignore_errors=True)
                removed.append(Path(entry.path))
    return removed


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    match = _NAME.fullmatch(entry.name)
    if match is None or match[1] != _system():
        return False
    try:
        if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.getuid():
            return False
    except OSError:
        return False
    pid, since = int(match[2]), int(match[3])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    now = started(pid)
    return bool(since) and now is not None and now != since


def started(pid: int) -> int | None:
    """Return the start of the process, in kernel ticks since the start of the system; None where it is unknown."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(status.rpartition(b")")[2].split()[19])


def _system() -> str:
    """Return a digest of the system within which process numbers are unique."""
    identity = os.uname().nodename
    for source in ("/proc/sys/kernel/random/boot_id",):
        with suppress(OSError):
            identity += Path(source).read_text()
    with suppress(OSError):
        identity += os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(identity.encode()).hexdigest()[:8]
