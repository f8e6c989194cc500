"""The address for requests to a run under way: its board's, in its folder, readable by this user alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quorate.core.errors import ConfigurationError, QuorateError
from quorate.wire.board import SocketBoard

_DOOR = "board.address"


@contextmanager
def open_to_all(folder: Path, board: str) -> Iterator[None]:
    """Publish the address of the board in the run's folder inside."""
    path = folder / _DOOR
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, board.encode())
    finally:
        os.close(handle)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()


def board_of(folder: Path) -> SocketBoard:
    """That of the run in `folder`. Raises `ConfigurationError` where none is under way that others may join."""
    try:
        return SocketBoard((folder / _DOOR).read_text(encoding="utf-8"))
    except (OSError, ValueError, QuorateError):
        raise ConfigurationError(
            f"no run that workers can join is running in {folder}; start one with quorate run --spare N"
        ) from None
