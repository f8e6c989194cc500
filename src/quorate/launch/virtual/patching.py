"""Replacements of functions of the process, which act differently when a virtual worker calls them.

A replacement looks at who calls. In any other thread, and after the world has ended, it is the original: a module that
was imported by a script keeps its imports for ever. There are replacements for the clock, for logging and for the
standard streams.
"""

from __future__ import annotations

import functools
import io
import logging
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.scheduler import Scheduler, Strand

_scheduler: Scheduler | None = None

EPOCH = 946_684_800.0
"""The value of `time.time()` at the start of a virtual world: the year 2000 (UTC), so that a run can be repeated."""

LOOK_SECONDS = 1e-6
"""A look at the clock takes a microsecond, so that loops which wait for a time end, and no interval is empty."""

_ZERO = {"time": EPOCH, "monotonic": 0.0, "perf_counter": 0.0, "process_time": 0.0, "thread_time": 0.0}

OnOutput = Callable[[int, str], None]
"""Told of what each rank writes: rank, text."""


def scheduler() -> Scheduler:
    """The one of the world in which scripts run now."""
    assert _scheduler is not None
    return _scheduler


def here() -> Strand | None:
    """The virtual worker's thread that asks; None for any other thread."""
    return None if _scheduler is None else _scheduler.here()


class StandIns:
    """A context: functions put in place within it are the originals again afterwards. One at a time."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def __enter__(self) -> StandIns:
        if _scheduler is not None:
            raise ConfigurationError("a process can run one virtual world at a time")
        return self

    def __exit__(self, *_: object) -> None:
        global _scheduler
        self._undo.close()
        _scheduler = None

    def serve(self, of: Scheduler) -> None:
        """From now on the threads of `of` get the replacements."""
        global _scheduler
        _scheduler = of

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Let `owner.name` be `value`, for everyone."""
        self._undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def put(self, owner: Any, name: str, stand_in: Callable[..., Any]) -> None:
        """In virtual workers `owner.name(...)` is `stand_in(original, ...)`. Nothing if there is no such function."""
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            if here() is None:
                return original(*arguments, **named)
            return stand_in(original, *arguments, **named)

        self.replace(owner, name, call)

    def on_exit(self, action: Callable[[], None]) -> None:
        """Call `action` when the context ends."""
        self._undo.callback(action)


def put_virtual_time(stand_ins: StandIns) -> None:
    """`time.time`, `monotonic`, `perf_counter`, `process_time`, `thread_time`, their `_ns` forms, and `sleep`.

    Not `datetime.now()`, `time.localtime()` and the like without an argument: they are the real ones.
    """
    for name, zero in _ZERO.items():
        stand_ins.put(time, name, lambda original, zero=zero: zero + look())
        stand_ins.put(time, f"{name}_ns", lambda original, zero=zero: int(zero) * 10**9 + round(look() * 1e9))
    stand_ins.put(time, "sleep", _sleep)


def look() -> float:
    """The virtual time of the worker that asks; seconds since the world began."""
    strand = here()
    assert strand is not None
    strand.ahead += LOOK_SECONDS
    return scheduler().now + strand.ahead


def _sleep(original: Any, seconds: float) -> None:
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    strand = here()
    if strand is not None and _is_importing():
        strand.ahead += seconds
    else:
        scheduler().sleep(seconds)


def _is_importing() -> bool:
    """Whether a module is under import: another worker that imports it would wait for its lock, with the baton."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False


class OwnRecords(logging.Filter):
    """Lets a record of rank r pass the handlers that r added; those of the first rank to add one, if r added none.

    The loggers are the process's. Without this a script that adds a handler would write every line once per worker.
    """

    def __init__(self, adders: list[int], rank: int) -> None:
        super().__init__()
        self._adders = adders
        self._rank = rank

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is one of this worker's."""
        rank = getattr(record, "rank", None)
        return rank is None or self._rank == (rank if rank in self._adders else self._adders[0])


def put_ranks_in_logs(stand_ins: StandIns) -> None:
    """Every record has an attribute `rank` (None outside of workers); handlers that workers added go in the end."""
    factory = logging.getLogRecordFactory()
    adders: dict[logging.Logger, list[int]] = {}
    added: list[tuple[logging.Logger, logging.Handler]] = []

    def make(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = factory(*arguments, **named)
        strand = here()
        record.rank = None if strand is None else strand.rank
        return record

    def add_handler(original: Any, logger: logging.Logger, handler: logging.Handler) -> None:
        strand = here()
        assert strand is not None
        ranks = adders.setdefault(logger, [])
        if strand.rank not in ranks:
            ranks.append(strand.rank)
        handler.addFilter(OwnRecords(ranks, strand.rank))
        added.append((logger, handler))
        original(logger, handler)

    def remove_all() -> None:
        for logger, handler in added:
            logger.removeHandler(handler)
            handler.close()

    logging.setLogRecordFactory(make)
    stand_ins.on_exit(lambda: logging.setLogRecordFactory(factory))
    stand_ins.put(logging.Logger, "addHandler", add_handler)
    stand_ins.on_exit(remove_all)


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
