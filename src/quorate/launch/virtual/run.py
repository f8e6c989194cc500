"""Run a user's script, unchanged, in virtual workers: `quorate run --virtual N script.py`.

The script is compiled and executed once per worker, in a `__main__` module of its own. What each worker has for
itself: that module, random generators, output (a log per rank), the clock, the wire that `quorate.join()` finds.
What all share: the environment, `sys.argv`, imported modules, process-wide settings of torch, signals, the folder.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TextIO

from quorate.core.contracts import DEFAULT_TIMEOUT, Wire
from quorate.core.errors import ConfigurationError, Failure, MissingExtra, PeerFailed, QuorateError
from quorate.core.script_errors import CallbackErrors, own_error, script_line
from quorate.core.telling import tell
from quorate.launch.run.overrides import overrides_here, why_unused
from quorate.launch.virtual.patched_torch import put_torch
from quorate.launch.virtual.patching import (
    Logs,
    OnOutput,
    StandIns,
    here,
    put_ranks_in_logs,
    put_routed_streams,
    put_virtual_time,
)
from quorate.launch.worker.recording import flush_records
from quorate.wire import current
from quorate.wire.virtual import ComputeModel, Network, Outcome, VirtualWorld
from quorate.wire.virtual.waits import in_words

INTERRUPTED = 130
"""The exit status after Ctrl-C."""

STACK_BYTES = 16 << 20
"""The stack of each worker's thread; only used pages take memory."""

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

    0: all ended normally. Otherwise the status of the first to fail: its argument of `sys.exit`, 2 after a
    `ConfigurationError`, 1 after any other exception. 1 also if no optimizer used the strategy that was asked for; 130
    after Ctrl-C (a long computation between waits is not interrupted: leave the process then). `run_dir` gets
    `rank-N.log` of every rank; rank 0 is also shown, unless `on_output` is passed, which is called with everything
    (rank, text).

    Raises `ConfigurationError` if `path` cannot be read.
    """
    script = Path(path)
    try:
        source = script.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"the script {path} cannot be read: {error.strerror}") from None
    mains = _MainModules(source, str(script))
    with _environment_of(script, args):
        return run_workers(
            mains.execute,
            script,
            size,
            joiners=joiners,
            seed=seed,
            compute=compute,
            network=network,
            timeout=timeout,
            run_dir=run_dir,
            on_output=on_output,
            resumed=mains.resumed,
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
    resumed: Callable[[int], None] = lambda rank: None,
) -> int:
    """Run as `run_script`; each worker calls `body`, whose code is in `file`. `resumed`: see `VirtualWorld`."""
    world = VirtualWorld(
        size,
        joiners=joiners,
        seed=seed,
        network=network,
        compute=compute,
        timeout=timeout,
        generators=True,
        stack_bytes=STACK_BYTES,
        resumed=resumed,
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


class _MainModules:
    """The `__main__` of each worker: that of the worker that runs is the one of pickle, dataclasses and annotations."""

    def __init__(self, source: bytes, path: str) -> None:
        self._source, self._path = source, path
        self._modules: dict[int, ModuleType] = {}

    def execute(self) -> None:
        """Run the script from its first line to its last, in a `__main__` of this worker's own."""
        module, path = ModuleType("__main__"), self._path
        nothing = dict.fromkeys(("__cached__", "__spec__", "__loader__"))
        module.__dict__.update(__file__=path, __builtins__=__builtins__, **nothing)
        strand = here()
        assert strand is not None
        self._modules[strand.rank] = module
        self.resumed(strand.rank)
        exec(compile(self._source, path, "exec", dont_inherit=True), module.__dict__)

    def resumed(self, rank: int) -> None:
        """Make the module of `rank`, which goes on, the main one."""
        if (module := self._modules.get(rank)) is not None:
            sys.modules["__main__"] = module


def _live(body: Callable[[], None], report: Report, wire: Wire) -> None:
    """Run one worker: its body, and its last actions."""
    place = current.enter(wire, thread_only=True)
    try:
        try:
            body()
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        place.leave()
    except Exception as error:
        own = own_error(error, CallbackErrors())
        report.show(wire.rank, own)
        if own is error:
            raise
        raise own from None
    except SystemExit as end:
        if not isinstance(end.code, int):
            tell(f"{end.code}\n")
        raise
    finally:
        flush_records(place)
        current.forget(thread_only=True)


class Report:
    """The report of the failures of a run, on the console and in the logs."""

    def __init__(self, world: VirtualWorld, script: Path, logs: Logs, console: TextIO) -> None:
        self.world = world
        self._script = str(script)
        self._logs = logs
        self._console = console
        self._refused: dict[str, list[int]] = {}
        """By sentence of a `ConfigurationError`, the ranks that raised it; it is printed once."""

    def show(self, rank: int, error: Exception) -> None:
        """Write the error of `rank` to its log, and unless it follows from another rank's failure, on the console.

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
        """Return the exit status; print refusals, and one line for workers that ended as another had failed."""
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
        is_survived = first.rank in self.world.stage.members.dead and not first.is_crashed
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
