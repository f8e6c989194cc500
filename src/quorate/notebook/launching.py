"""`quorate.launch`: workers that call a function, started from Python: a script, a shell, or a cell of a notebook."""

from __future__ import annotations

import codecs
import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, TextIO, Unpack

from quorate.cli.choices import check_overrides, check_virtual, check_workers
from quorate.core.errors import ConfigurationError, WorkerFailed
from quorate.core.quantities import bytes_per_second_from, seconds_from
from quorate.core.telling import tell
from quorate.launch.local.processes import Conclusion
from quorate.launch.run.folder import held, run_folder, usual_name, write_outcome, write_run
from quorate.launch.run.overrides import Overrides
from quorate.launch.warm.request import RunRequest, VirtualRun
from quorate.notebook import function as functions
from quorate.notebook.progress import display_of_notebook, progress_of
from quorate.report.closing import closing_line
from quorate.wire import current

if TYPE_CHECKING:
    from quorate.train.names import Settings, StrategyName

_INTERRUPTED, _WRONG_INPUT, _LACKING = 130, 2, 3
_SECONDARY = "PeerFailed"


class Launched(NamedTuple):
    """The results of a run."""

    results: list[Any]
    """The return values of the function, in order of rank."""
    folder: Path
    """The folder of the records; `quorate.report` takes this object."""


def launch(
    function: Callable[..., Any],
    *,
    n: int | None = None,
    virtual: int | None = None,
    args: Sequence[Any] = (),
    strategy: StrategyName | Literal["ddp"] | None = None,
    name: str | None = None,
    seed: int | None = None,
    imbalance: str | None = None,
    min_step_time: str | None = None,
    data_share: str | None = None,
    seconds: float | None = None,
    log: str | None = None,
    compute: str | None = None,
    latency: str | float | None = None,
    bandwidth: str | float | None = None,
    progress: bool = True,
    **settings: Unpack[Settings],
) -> Launched:
    """Call `function(*args)` in `n` worker processes, or in `virtual` workers of this process, and wait for their end.

    Args:
        function: Calls `quorate.join()` and trains, as a script does. Processes receive a copy of it, with
            the globals that it uses, by cloudpickle (the extra `notebook`). Virtual workers share this process.
        n: Number of worker processes.
        virtual: Number of virtual workers, in place of `n`.
        args: Arguments of the function, equal for all workers.
        strategy: Replaces the strategy of the function.
        settings: Settings of the strategy.
        progress: Whether progress is shown; in a notebook it appears in the output of the cell.
        name, seed, imbalance, min_step_time, data_share, seconds, log: The options of `quorate run` of these names.
        compute, latency, bandwidth: The options of `quorate run` of these names, for virtual workers.

    Returns:
        The values that the function returned, by rank, and the folder of the records. Processes can return None,
        numbers, text, tensors (which arrive on the CPU), and lists, tuples and dicts of these; virtual workers return
        the objects themselves.

    Raises:
        WorkerFailed: A worker raised or died; it has rank and traceback, and for virtual workers the error as cause.
        ConfigurationError: Arguments are wrong, or the function raised this error.
        KeyboardInterrupt: The call was interrupted; all workers have ended.

    Cost: each process imports torch; virtual workers start at once.

    Example:
        >>> def train():
        ...     world = quorate.join()
        ...     return world.sum(world.rank)
        >>> quorate.launch(train, virtual=4, progress=False).results
        [6, 6, 6, 6]
    """
    if (n is None) == (virtual is None):
        raise ConfigurationError("quorate.launch takes n=, the number of worker processes, or virtual=, and not both")
    check_workers(n, virtual)
    if not callable(function):
        raise ConfigurationError(f"quorate.launch takes a function, not a {type(function).__name__}")
    place = current.place()
    if place is not None and place.wire.size > 1:
        raise ConfigurationError("quorate.launch cannot be called in a process that is already one of several workers")
    of_virtual = {"compute": compute, "latency": latency, "bandwidth": bandwidth}
    excluded = [word for word, value in of_virtual.items() if value is not None]
    if virtual is None and excluded:
        raise ConfigurationError(f"{' and '.join(excluded)} can be given with virtual= only")
    size = n or virtual or 1
    overrides = Overrides(
        strategy=strategy,
        settings=dict(settings),
        seed=seed,
        imbalance=imbalance,
        pace=min_step_time,
        share=data_share,
        seconds=seconds,
        log=log,
    )
    check_overrides(overrides, size, is_virtual=virtual is not None)
    world = None
    if virtual is not None:
        world = VirtualRun(
            seed=seed or 0,
            compute=compute,
            latency=None if latency is None else seconds_from(str(latency)),
            bandwidth=None if bandwidth is None else bytes_per_second_from(str(bandwidth)),
        )
        check_virtual(world)
    called = getattr(function, "__name__", "function")
    request = RunRequest(
        script=called,
        overrides=overrides,
        size=size,
        folder=run_folder(name or usual_name(called)).resolve(),
        virtual=world,
    )
    write_run(request.folder, None, {"command": [], **request.as_json(os.environ.get("OMP_NUM_THREADS", "1"))})
    return _Launch(request, function, tuple(args)).result(shows=progress)


class _Launch:
    """One call of `launch`."""

    def __init__(self, request: RunRequest, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._request, self._function, self._args = request, function, args
        self._folder = request.folder
        self._results: dict[int, Any] = {}
        self._errors: dict[int, BaseException] = {}
        """By rank, in the order in which virtual workers raised them."""

    def result(self, *, shows: bool) -> Launched:
        begin = time.monotonic()
        progress = partial(progress_of, self._folder, is_wanted=shows)
        with held(self._folder):
            if self._request.virtual is None:
                ended = self._as_processes(progress)
            else:
                with progress():
                    ended = self._as_virtual(self._request.virtual)
            why = None if ended.why is None else ended.why.partition("\n")[0]
            write_outcome(self._folder, ended.status, time.monotonic() - begin, why)
        line = closing_line(self._folder)
        if shows and line is not None and display_of_notebook() is None:
            tell(f"quorate: {line}\n")
        if ended.status == _INTERRUPTED:
            raise KeyboardInterrupt
        if ended.status:
            self._fail(ended)
        if self._request.virtual is None:
            self._results = {rank: functions.result_in(self._folder, rank) for rank in range(self._request.size)}
        return Launched([self._results.get(rank) for rank in range(self._request.size)], self._folder)

    def _as_processes(self, progress: Callable[[], AbstractContextManager[None]]) -> Conclusion:
        """Run processes; `progress` starts a thread, so it comes after the fork."""
        from quorate.launch.local.children import Command, StartedRanks
        from quorate.launch.local.console import ShownConsole
        from quorate.launch.local.processes import run_crew, show
        from quorate.launch.local.verdict import log_of
        from quorate.launch.warm.forks import kept
        from quorate.wire.socket_folder import make_socket_folder

        request, place = self._request, make_socket_folder()
        try:
            functions.send(place / "function", self._function, self._args)
            command = Command(
                script="quorate.notebook.worker",
                arguments=[str(place / "function")],
                is_module=True,
                overrides=request.overrides,
            )
            shown = ShownConsole(log_of(self._folder, 0), bytes_of(sys.stdout), bytes_of(sys.stderr))
            with (
                StartedRanks(command, request.size, self._folder, shown, kept()) as ranks,
                progress(),
                shown.following_size(),
            ):
                return run_crew(command, request.size, self._folder, ranks, shows=show, asked=shown.hide)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _as_virtual(self, virtual: VirtualRun) -> Conclusion:
        from quorate.launch.virtual.run import run_workers

        request = self._request
        with _environment({"QUORATE_RUN": str(self._folder), **request.overrides.environment()}):
            status = run_workers(
                self._call,
                functions.file_of(self._function),
                request.size,
                seed=virtual.seed,
                compute=virtual.compute_model(),
                network=virtual.network(),
                run_dir=self._folder,
            )
        return Conclusion(status, f"a worker ended with status {status}; see its log" if status else None)

    def _call(self) -> None:
        rank = current.here().wire.rank
        try:
            self._results[rank] = self._function(*self._args)
        except Exception as error:
            self._errors[rank] = error
            raise

    def _fail(self, ended: Conclusion) -> None:
        """Raise the error that ended the run."""
        file = functions.file_of(self._function)
        raised = functions.raised_in(self._folder) if self._request.virtual is None else [
            functions.Raised(rank, 0.0, type(error).__name__, str(error), functions.traceback_from(error, file))
            for rank, error in self._errors.items()
        ]  # fmt: skip
        first = next((failure for failure in raised if failure.kind != _SECONDARY), raised[0] if raised else None)
        if first is None:
            sentence = ended.why or f"the run ended with status {ended.status}"
            raise WorkerFailed(sentence)
        cause = self._errors.get(first.rank)
        if ended.status in (_WRONG_INPUT, _LACKING):
            raise ConfigurationError(f"rank {first.rank}: {first.message}") from cause
        sentence = f"rank {first.rank} raised {first.kind}: {first.message}"
        raise WorkerFailed(f"{sentence}\n\n{first.trace.rstrip()}", (first.rank,)) from cause


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Replace all `QUORATE_` variables of the environment inside the context."""
    before = {name: value for name, value in os.environ.items() if name.startswith("QUORATE_")}
    for name in before:
        del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("QUORATE_")]:
            del os.environ[name]
        os.environ.update(before)


def bytes_of(stream: TextIO) -> BinaryIO:
    """Return the binary buffer of a text stream, or one that decodes into it."""
    binary: BinaryIO = getattr(stream, "buffer", None) or _TextBytes(stream)
    return binary


class _TextBytes(io.BytesIO):
    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, piece: object) -> int:
        data = bytes(piece)  # type: ignore[call-overload]
        self._stream.write(self._decoder.decode(data))
        return len(data)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno")
