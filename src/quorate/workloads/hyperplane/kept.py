"""The points in one file in the user's cache folder, mapped into every worker on this machine and so in memory once.

4,096 bytes of header (JSON), then the inputs, then the targets, both float32, row by row. It is written to a temporary
name and renamed, under a lock, so that it is written once however many processes want it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import numpy as np

from quorate.core.cache_folder import cache_folder
from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell
from quorate.workloads.hyperplane.plane import Floats, Plane

FORMAT = 1
"""Counted up when the same plane would give other rows, or another file."""

HEADER_BYTES = 4096
BLOCK_ROWS = 64
SHOWN_FROM_BYTES = 64 * 2**20
"""A smaller file is written without a word."""

CHECKED_ROWS = 16
"""So many rows, spread evenly, are drawn again and compared when a file is opened."""

WAIT_SECONDS = 600.0
"""How long another process may take to write the file."""

_POLL_SECONDS = 0.1
_OTHERWISE = 'data="counter" needs no file'


def opened(plane: Plane, rows: int) -> tuple[Floats, Floats]:
    """Inputs (rows, features) and targets (rows,), mapped from the file; it is written first where there is none.

    What is written into the arrays stays in this process. Looked at are the file's length, its header, the targets'
    digest, and `CHECKED_ROWS` rows; a file that fails is written anew. Raises `ConfigurationError` where the file can
    not be kept, or another process does not finish writing it within `WAIT_SECONDS`.
    """
    folder = cache_folder()
    if folder is None:
        raise ConfigurationError(f"hyperplane: there is no home for a cache folder; {_OTHERWISE}")
    path = folder / f"hyperplane-{_digest(_description(plane, rows))[:16]}.rows"
    try:
        arrays = _mapped(path, plane, rows)
        if arrays is None:
            folder.mkdir(parents=True, exist_ok=True)
            with _alone(path.with_suffix(".lock")):
                arrays = _mapped(path, plane, rows)  # perhaps another process has written it
                if arrays is None:
                    _write(path, plane, rows)
                    arrays = _mapped(path, plane, rows)
    except OSError as error:
        why = error.strerror or error
        raise ConfigurationError(f"hyperplane: {path} cannot be kept ({why}); {_OTHERWISE}") from error
    if arrays is None:
        raise ConfigurationError(f"hyperplane: {path} does not hold what was written to it; {_OTHERWISE}")
    return arrays


def _description(plane: Plane, rows: int) -> str:
    # Another numpy may draw other numbers from the same counts.
    return json.dumps([FORMAT, np.__version__, sys.byteorder, asdict(plane), rows])


def _mapped(path: Path, plane: Plane, rows: int) -> tuple[Floats, Floats] | None:
    """The arrays in the file; None where there is none, or it is not whole."""
    end_of_inputs = HEADER_BYTES + 4 * rows * plane.features
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != end_of_inputs + 4 * rows:
                return None
            header = file.read(HEADER_BYTES)
            # "c": changes stay in this process; torch will not take an array that can not be written to.
            inputs = np.memmap(file, np.float32, "c", HEADER_BYTES, (rows, plane.features))
            targets = np.memmap(file, np.float32, "c", end_of_inputs, (rows,))
    except FileNotFoundError:
        return None
    if header != _header(plane, rows, targets):
        return None
    drawn = np.unique(np.linspace(0, rows - 1, CHECKED_ROWS).astype(int)).tolist()
    is_whole = np.array_equal(plane.rows(drawn)[0], inputs[drawn])
    return (inputs, targets) if is_whole else None


def _header(plane: Plane, rows: int, targets: Floats) -> bytes:
    fields = {"rows": _description(plane, rows), "targets": _digest(targets.tobytes())}
    return json.dumps(fields).encode().ljust(HEADER_BYTES - 1) + b"\n"


def _digest(of: str | bytes) -> str:
    return hashlib.sha256(of.encode() if isinstance(of, str) else of).hexdigest()


def _write(path: Path, plane: Plane, rows: int) -> None:
    """Make the file, in about 7 s per gigabyte. Only one process at a time."""
    size = HEADER_BYTES + 4 * rows * (plane.features + 1)
    temporary = path.with_suffix(".part")  # what a writer that was killed has left is written over
    try:
        temporary.unlink(missing_ok=True)
        free = shutil.disk_usage(path.parent).free
        if free < size:
            raise ConfigurationError(
                f"hyperplane: the points take {size / 1e9:.2g} GB and {path.parent} has {free / 1e9:.2g} GB free; "
                f"{_OTHERWISE}"
            )
        with temporary.open("wb") as file:
            _fill(file, path, plane, rows)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _fill(file: BinaryIO, path: Path, plane: Plane, rows: int) -> None:
    is_shown = 4 * rows * plane.features >= SHOWN_FROM_BYTES
    if is_shown:
        tell(f"hyperplane: writing {4 * rows * plane.features / 1e9:.2g} GB to {path}, once\n")
    file.seek(HEADER_BYTES)
    targets = np.empty(rows, np.float32)
    tenths = 0
    for first in range(0, rows, BLOCK_ROWS):
        end = min(first + BLOCK_ROWS, rows)
        inputs, targets[first:end] = plane.rows(list(range(first, end)))
        file.write(inputs.data)
        if is_shown and end * 10 // rows > tenths:
            tenths = end * 10 // rows
            tell(f"hyperplane: {tenths}0 % written\n")
    file.write(targets.data)
    file.seek(0)
    file.write(_header(plane, rows, targets))


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock at `path`; the system lets go of it when its holder ends, however that ends."""
    with path.open("ab") as file:
        # Counted, and not by `time`: another process is waited for, which a virtual clock does not know.
        pause = threading.Event()
        for wait in range(round(WAIT_SECONDS / _POLL_SECONDS) + 1):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if wait == round(1 / _POLL_SECONDS):
                    tell("hyperplane: waiting for another process, which writes the points\n")
                pause.wait(_POLL_SECONDS)
            else:
                break
        else:
            raise ConfigurationError(
                f"hyperplane: another process has held {path} for {WAIT_SECONDS:g} s; {_OTHERWISE}"
            )
        yield  # closing the file lets go of the lock
