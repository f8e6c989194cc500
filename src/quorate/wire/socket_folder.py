"""Folders for socket files, in the system's place for temporary files: made, and cleared away when their maker is gone.

A launcher that is killed leaves its folder behind. Its name says whose it is:
`quorate-<system>-<process>-<when that was started>-<random>`. Whoever makes one takes away those of dead processes
first, and none that may be anybody else's: another user's, another machine's or container's, or one whose maker cannot
be told.
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
"""Bytes in the path of a Unix socket that every system takes."""
_PREFIX = "quorate-"
_LONGEST_NAME = "quorate-12345678-4194304-123456789012-12345678/mail-100-100000"
_NAME = re.compile(r"quorate-([0-9a-f]{8})-(\d+)-(\d+)-[A-Za-z0-9_]+")


def make_socket_folder(label: str | None = None, *, of: int | None = None) -> Path:
    """A new folder of mode 0700 whose path is short enough for sockets; whoever made it removes it.

    Who knows its `label` finds it: `find_socket_folder`. It is kept as long as the process `of` lives, which is this
    one by default.
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
    """The folder that a process of this user, which lives, has made on this machine with this `label`; None: none."""
    place, end = _place(), f"-{_digest(label)}"
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            found = _NAME.fullmatch(entry.name)
            if found is None or found[1] != _system() or not entry.name.endswith(end) or _is_abandoned(entry):
                continue
            about = entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False) and about.st_uid == os.getuid() and not about.st_mode & 0o077:
                return Path(entry.path)
    return None


def _place() -> Path:
    place = tempfile.gettempdir()
    return Path("/tmp" if len(os.fsencode(place)) > LONGEST_PATH - len(_LONGEST_NAME) - 1 else place)


def _digest(label: str) -> str:
    return hashlib.sha256(label.encode()).hexdigest()[:8]


def clear_abandoned(place: Path) -> list[Path]:
    """Remove the folders in `place` whose maker is certain to be dead; returns them. Raises nothing."""
    removed: list[Path] = []
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if _is_abandoned(entry):
                shutil.rmtree(entry.path, ignore_errors=True)
                removed.append(Path(entry.path))
    return removed


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    found = _NAME.fullmatch(entry.name)
    if found is None or found[1] != _system():
        return False
    try:
        if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.getuid():
            return False
    except OSError:
        return False
    pid, since = int(found[2]), int(found[3])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    now = started(pid)
    return bool(since) and now is not None and now != since


def started(pid: int) -> int | None:
    """When the process was started, in the kernel's ticks since the system was; None where that cannot be told."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(status.rpartition(b")")[2].split()[19])


def _system() -> str:
    """Tells apart the systems on which numbers of processes mean something else."""
    known = os.uname().nodename
    for source in ("/proc/sys/kernel/random/boot_id",):
        with suppress(OSError):
            known += Path(source).read_text()
    with suppress(OSError):
        known += os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(known.encode()).hexdigest()[:8]
