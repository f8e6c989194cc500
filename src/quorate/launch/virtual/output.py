"""The output of scripts in virtual workers: each rank has a log of its own; rank 0's goes also to the console."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from quorate.launch.virtual.patching import StandIns, here

OnOutput = Callable[[int, str], None]
"""Told of what each rank writes: rank, text."""


class Logs:
    """The files `rank-N.log` in `folder`, opened when something is written; without a folder nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._files: dict[int, TextIO] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def write(self, rank: int, text: str) -> None:
        """Append to the log of `rank`."""
        if self._folder is None:
            return
        if rank not in self._files:
            self._files[rank] = (self._folder / f"rank-{rank}.log").open("a", encoding="utf-8", buffering=1)
        self._files[rank].write(text)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


class RoutedStream(io.TextIOBase):
    """A standard stream whose writes go to the log of the worker that writes."""

    def __init__(self, real: TextIO, logs: Logs, on_output: OnOutput | None) -> None:
        self._real = real
        self._logs = logs
        self._on_output = on_output

    def write(self, text: str) -> int:
        strand = here()
        if strand is None:
            return self._real.write(text)
        self._logs.write(strand.rank, text)
        if self._on_output is not None:
            self._on_output(strand.rank, text)
        elif strand.rank == 0:
            self._real.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream of this thread's worker."""
        if not self._real.closed:
            self._real.flush()

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        strand = here()
        return (strand is None or strand.rank == 0) and self._on_output is None and self._real.isatty()

    def fileno(self) -> int:
        """Return the number of the file."""
        return self._real.fileno()

    def writable(self) -> bool:
        """Return whether it can be written to."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding."""
        return self._real.encoding or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """The treatment of encoding errors."""
        return self._real.errors

    @property
    def buffer(self) -> io.BufferedIOBase:
        """Bytes written here go to the real stream, from every worker."""
        return self._real.buffer  # type: ignore[return-value]


def put_routed_streams(stand_ins: StandIns, logs: Logs, on_output: OnOutput | None) -> None:
    """`sys.stdout` and `sys.stderr` by rank."""
    stand_ins.replace(sys, "stdout", RoutedStream(sys.stdout, logs, on_output))
    stand_ins.replace(sys, "stderr", RoutedStream(sys.stderr, logs, on_output))
