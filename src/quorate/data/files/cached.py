"""Copies of files in a folder of this host: each is fetched once, by the first process of the host that needs it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from quorate.core.telling import tell


@dataclass(frozen=True)
class Cache:
    """A cache in `folder`. A copy is identified by path, size and time of its original."""

    folder: Path

    def near(self, path: Path) -> Path:
        """Return a copy of `path`; where there is no room for one, `path` itself, with a message."""
        about = path.stat()
        identity = f"{path.resolve()}\n{about.st_size}\n{about.st_mtime_ns}"
        copy = self.folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}{path.suffix}"
        if _is_whole(copy, about.st_size):
            return copy
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / f"{copy.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # goes with the process
                if not _is_whole(copy, about.st_size):
                    self._fetch(path, copy)
        except OSError as error:
            tell(f"quorate: {path} is read where it is, and not kept in {self.folder}: {error}\n")
            return path
        return copy

    def _fetch(self, path: Path, copy: Path) -> None:
        new = copy.with_name(f"{copy.name}.new")
        try:
            shutil.copyfile(path, new)
            os.replace(new, copy)
        except OSError:
            new.unlink(missing_ok=True)
            raise


def _is_whole(copy: Path, size: int) -> bool:
    try:
        return copy.stat().st_size == size
    except OSError:
        return False
