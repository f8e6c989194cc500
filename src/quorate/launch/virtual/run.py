"""Run a user's script, unchanged, in virtual workers: `quorate run --virtual N script.py`.

The script is compiled and executed once per worker, in a `__main__` module of its own. What each worker has for
itself: that module, random generators, output (a log per rank), the clock, the wire that `quorate.join()` finds.
What all share: the environment, `sys.argv`, imported modules, process-wide settings of torch, signals, the folder.

The virtual clock behind python's `time`, for scripts in virtual workers.

Logging in virtual workers: records know their rank, and a handler serves the worker that added it.

Where the output of scripts in virtual workers goes: to a log of each rank's own; rank 0's also to the console.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any, TextIO

from quorate.core.contracts import DEFAULT_TIMEOUT, Wire
from quorate.core.errors import ConfigurationError, Failure, MissingExtra, PeerFailed, QuorateError
from quorate.core.telling import tell
from quorate.launch.run.overrides import overrides_here
from quorate.launch.run.unused import why_unused
from quorate.launch.virtual.patched_torch import put_torch
from quorate.launch.virtual.patching import StandIns, here, scheduler
from quorate.launch.worker.recording import flush_records
from quorate.launch.worker.script_line import script_line
from quorate.wire import current
from quorate.wire.virtual import ComputeModel, Network, Outcome, VirtualWorld
from quorate.wire.virtual.waits import in_words

INTERRUPTED = 130
"""The exit status after Ctrl-C."""

STACK_BYTES = 16 << 20
"""Of each worker's thread; only what is used takes memory."""

_LAUNCHERS_NAMES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip


def run_script(
    path: str | Path,
    args: Sequence[str] = (),
    size: int = 1,
    *,
    joiners: int = 0,
    seed: int = 0,
    compute: ComputeModel | None = None,
    network: Network | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    run_dir: str | Path | None = None,
    on_output: OnOutput | None = None,
) -> int:
    """Run the script at `path` in `size` virtual workers, and `joiners` more that join; returns the run's exit status.

    0: all ended normally. Otherwise the status of the first to fail: what it gave to `sys.exit`, 2 after a
    `ConfigurationError`, 1 after any other exception, and where a strategy was asked for that nobody used; 130 after
    Ctrl-C (a long computation between waits is not interrupted: leave the process then). `run_dir` gets `rank-N.log` of
    every rank; rank 0 is also shown, unless `on_output` is there, which is told of everything (rank, text).

    Raises `ConfigurationError` if `path` cannot be read.
    """
    script = Path(path)
    try:
        source = script.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"the script {path} cannot be read: {error.strerror}") from None
    with _environment_of(script, args):
        return run_workers(
            partial(_execute, source, str(script)),
            script,
            size,
            joiners=joiners,
            seed=seed,
            compute=compute,
            network=network,
            timeout=timeout,
            run_dir=run_dir,
            on_output=on_output,
        )


def run_workers(
    body: Callable[[], None],
    file: str | Path,
    size: int,
    *,
    joiners: int = 0,
    seed: int = 0,
    compute: ComputeModel | None = None,
    network: Network | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    run_dir: str | Path | None = None,
    on_output: OnOutput | None = None,
) -> int:
    """As `run_script`, for what each worker calls: `body`, whose code is in `file`."""
    world = VirtualWorld(
        size,
        joiners=joiners,
        seed=seed,
        network=network,
        compute=compute,
        timeout=timeout,
        generators=True,
        stack_bytes=STACK_BYTES,
    )
    logs = Logs(None if run_dir is None else Path(run_dir))
    console = sys.stderr
    report = Report(world, Path(file), logs, console)
    with StandIns() as stand_ins:
        put_torch(stand_ins)
        put_ranks_in_logs(stand_ins)
        put_routed_streams(stand_ins, logs, on_output)
        stand_ins.on_exit(logs.close)
        put_virtual_time(stand_ins)
        task = partial(_live, body, report)
        try:
            outcomes = world.outcomes(task, on_start=lambda stage: stand_ins.serve(stage.scheduler))
        except KeyboardInterrupt:
            tell("quorate: interrupted\n", console)
            return INTERRUPTED
        return report.conclude(outcomes)


def _execute(source: bytes, path: str) -> None:
    """The script from its first line to its last, in a `__main__` of this worker's own."""
    module = ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None, __spec__=None, __loader__=None)
    strand = here()
    assert strand is not None
    strand.on_resume = _is_main(module)
    sys.modules["__main__"] = module
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)


def _live(body: Callable[[], None], report: Report, wire: Wire) -> None:
    """One worker: what it is to do, and what it does before it leaves."""
    place = current.enter(wire, thread_only=True)
    try:
        try:
            body()
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        place.leave()
    except Exception as error:
        report.show(wire.rank, error)
        raise
    except SystemExit as end:
        if not isinstance(end.code, int):
            tell(f"{end.code}\n")
        raise
    finally:
        flush_records(place)
        current.forget(thread_only=True)


def _is_main(module: ModuleType) -> Callable[[], None]:
    """Makes `module` what pickle, dataclasses and annotations take for `__main__`, while its worker runs."""
    return partial(sys.modules.__setitem__, "__main__", module)


class Report:
    """What is said of the failures of a run, on the console and in the logs."""

    def __init__(self, world: VirtualWorld, script: Path, logs: Logs, console: TextIO) -> None:
        self.world = world
        self._script = str(script)
        self._logs = logs
        self._console = console
        self._refused: dict[str, list[int]] = {}
        """By sentence of a `ConfigurationError`, who raised it: many workers raise the same, which is told once."""

    def show(self, rank: int, error: Exception) -> None:
        """What `rank` raised: in its log, and unless it follows from another rank's failure, on the console.

        Python's traceback, or the sentence of a `QuorateError`. A `ConfigurationError` is shown by `conclude`.
        """
        text = "".join(traceback.format_exception(type(error), error, self._in_script(error)))
        if isinstance(error, QuorateError):
            where = script_line(error.__traceback__) if isinstance(error, ConfigurationError) else ""
            text = f"quorate: {error}{where}\n"
        self._logs.write(rank, text)
        if isinstance(error, ConfigurationError):
            self._refused.setdefault(text, []).append(rank)
        elif not self._is_secondary(error):
            for line in text.splitlines():
                tell(f"[rank {rank}] {line}\n", self._console)

    def conclude(self, outcomes: Sequence[Outcome[None]]) -> int:
        """The exit status; what was refused, and one line for those that ended because another had failed."""
        for text, ranks in self._refused.items():
            by_all = len(ranks) == self.world.size
            tell(text if by_all else f"[{in_words(sorted(ranks))}] {text}", self._console)
        failures = self.world.stage.failures
        if not failures:
            why = why_unused(self.world.stage.board, overrides_here(), self.world.size)
            if why is not None:
                tell(f"quorate: {why}\n", self._console)
            return 0 if why is None else 1
        first = failures[0]
        is_survived = first.rank in self.world.stage.dead and not first.is_crashed
        if is_survived:
            tell(
                f'quorate: rank {first.rank} had failed, and the others went on (on_error="continue")\n', self._console
            )
        followers = [o.rank for o in outcomes if o.rank != first.rank and self._is_secondary(o.error)]
        if first.is_crashed:
            tell(f"quorate: rank {first.rank} crashed\n", self._console)
        if followers and not is_survived:
            tell(f"quorate: {in_words(followers)} stopped because rank {first.rank} had failed\n", self._console)
        return _status(first.error)

    def _is_secondary(self, error: BaseException | None) -> bool:
        failures = self.world.stage.failures
        if isinstance(error, PeerFailed):
            return not {life.rank for life in failures}.isdisjoint(error.ranks)
        return isinstance(error, Failure) and any(
            error is not life.error and str(error) == str(life.error) for life in failures[:1]
        )

    def _in_script(self, error: Exception) -> TracebackType | None:
        """The traceback from the script's first frame on; whole, if the script is not in it."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != self._script:
            trace = trace.tb_next
        return trace or error.__traceback__


def _status(error: BaseException | None) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    return 3 if isinstance(error, MissingExtra) else 2 if isinstance(error, ConfigurationError) else 1


@contextmanager
def _environment_of(script: Path, args: Sequence[str]) -> Iterator[None]:
    """`sys.argv`, `sys.path` and the environment as a script finds them that is started alone."""
    argv, path, main = sys.argv, list(sys.path), sys.modules["__main__"]
    hidden = {name: os.environ.pop(name) for name in _LAUNCHERS_NAMES if name in os.environ}
    sys.argv = [str(script), *args]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
        sys.modules["__main__"] = main
        os.environ.update(hidden)


EPOCH = 946_684_800.0
"""What `time.time()` is when a virtual world begins: the year 2000 (UTC), so that a run can be repeated."""

LOOK_SECONDS = 1e-6
"""A look at the clock takes a microsecond, so that loops which wait for a time end, and no interval is empty."""

_ZERO = {"time": EPOCH, "monotonic": 0.0, "perf_counter": 0.0, "process_time": 0.0, "thread_time": 0.0}


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
    """A standard stream whose writes go where they belong by who writes."""

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
        """As of a stream."""
        if not self._real.closed:
            self._real.flush()

    def isatty(self) -> bool:
        """As of a stream."""
        strand = here()
        return (strand is None or strand.rank == 0) and self._on_output is None and self._real.isatty()

    def fileno(self) -> int:
        """As of a stream."""
        return self._real.fileno()

    def writable(self) -> bool:
        """As of a stream."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """As of a stream."""
        return self._real.encoding or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """As of a stream."""
        return self._real.errors

    @property
    def buffer(self) -> io.BufferedIOBase:
        """Bytes written here go to the real stream, whoever writes."""
        return self._real.buffer  # type: ignore[return-value]


def put_routed_streams(stand_ins: StandIns, logs: Logs, on_output: OnOutput | None) -> None:
    """`sys.stdout` and `sys.stderr` by rank."""
    stand_ins.replace(sys, "stdout", RoutedStream(sys.stdout, logs, on_output))
    stand_ins.replace(sys, "stderr", RoutedStream(sys.stderr, logs, on_output))
