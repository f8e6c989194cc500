"""The records of a worker, and their rows beside its steps."""

from __future__ import annotations

import importlib
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quorate.checkpoint.participants import CheckpointContext
from quorate.checkpoint.saving import CHECKPOINTS
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.servers import OwnServers
from quorate.core.telling import tell
from quorate.data.context import DataContext
from quorate.launch.loggers import names_from
from quorate.launch.loggers.writing import Scalars, Writing, writing_to
from quorate.launch.run.folder import RUNS, new_run_folder
from quorate.launch.run.overrides import Overrides
from quorate.launch.worker.gangs import remember_folder, remembered_folder
from quorate.launch.worker.other_launchers import is_requeued, name_under_slurm
from quorate.launch.worker.record_transfer import RecordTransfer
from quorate.observe.host_load import HostLoad
from quorate.observe.memory_use import MemoryUse
from quorate.observe.step_times import Timing
from quorate.records.records import Recorder, records_of
from quorate.records.rows import End, Log, Row, Start
from quorate.wire import current
from quorate.wire.current import Place
from quorate.wire.real.wire import RealWire

HOME_WITHIN, LAST_WORDS = 10.0, 2.0
"""Seconds that a worker takes at most to send its last rows to another host: after a good end, and a bad one."""


def start_records(place: Place, device: str, chosen: Overrides, *, wanted: bool | None, log: str | None = None) -> None:
    """Open this worker's records, where it keeps some.

    `wanted` None: in the folder that `quorate run` has named; where another launcher has started several workers, in
    a new one below `runs`, the same on all. True: also of a worker alone. False: none. `log` names loggers, as
    the script would have them. Raises as `names_from`.
    """
    folder = None if wanted is False else _folder(place, chosen, is_wanted=bool(wanted))
    if folder is None:
        return
    place.context(CheckpointContext).root = folder / CHECKPOINTS
    wire, kept, is_real = place.wire, place.context(_Kept), isinstance(place.wire, RealWire)
    further: Callable[[], Sequence[Row]] = tuple
    if isinstance(wire, RealWire):
        wire.endpoint.records = folder
        if wire.rank == 0 and not os.environ.get("QUORATE_RUN"):
            kept.folder = folder
        if not wire.endpoint.is_local:
            kept.transfer, further = RecordTransfer(wire.endpoint, folder), wire.endpoint.clocks.news
    writing = _writing(place, folder, chosen, log)
    recorder = place.context(Timing).recorder = Recorder(
        records_of(folder, wire.rank),
        closes=not is_real,
        copy=None if writing is None else Scalars(writing),
        say=partial(_say, wire.rank),
        further=further,
    )
    recorder.write(
        Start(
            rank=wire.rank,
            size=wire.size,
            host=socket.gethostname(),
            pid=os.getpid(),
            clock="monotonic" if is_real else "virtual",
            now=wire.clock.now(),
            wall=time.time() if is_real else None,
            device=device,
            seed=chosen.seed,
            seat=place.context(DataContext).replaced_rank,
            server=place.context(OwnServers).has(wire.rank),
        )
    )
    if is_real:
        place.context(MemoryUse).begin(recorder, wire.clock.now(), is_on_gpu=device.startswith("cuda"))
        place.context(HostLoad).begin(wire.clock.now())
    place.context(DataContext).recorder = recorder
    place.leaving.append(lambda: _end(place, recorder, is_real=is_real))


def _say(rank: int, sentence: str) -> None:
    tell(f"quorate: rank {rank}: {sentence}\n")


def _writing(place: Place, folder: Path, chosen: Overrides, log: str | None) -> Writing | None:
    """Return the loggers of rank 0; for virtual workers only those that were requested."""
    wire, asked = place.wire, log if chosen.log is None else chosen.log
    if wire.rank != 0 or (asked is None and not isinstance(wire, RealWire)):
        return None
    about = {"workers": wire.size, "strategy": chosen.strategy, "settings": dict(chosen.settings), "seed": chosen.seed}
    writing = place.context(_Kept).writing = writing_to(names_from(asked), folder, about, partial(_say, wire.rank))
    return writing


def _folder(place: Place, chosen: Overrides, *, is_wanted: bool) -> Path | None:
    wire = place.wire
    named = os.environ.get("QUORATE_RUN")
    if named:
        return Path(named) if wire.rank == 0 else _made(Path(named))
    is_ours = bool(os.environ.get("QUORATE_BOARD"))  # our own launcher named no folder on purpose
    if not isinstance(wire, RealWire) or is_ours:
        return None
    before = begun_before(wire)
    if before is None and wire.size == 1 and not is_wanted:
        return None
    if wire.rank == 0:
        folder = before or new_run_folder(wire.size, name=name_under_slurm(), **chosen.as_json())
        wire.board.set("records", str(folder).encode())
        tell(f"quorate: records in {os.path.relpath(folder)}\n")
    wire.board.wait(["records"], wire.timeout)
    written = wire.board.get("records")
    assert written is not None
    folder = _made(Path(written.decode()))
    remember_folder(folder)
    return folder


def begun_before(wire: Wire) -> Path | None:
    """The folder of the run that a launcher has restarted, if it has; called by all workers."""
    name = name_under_slurm()
    if name is not None and is_requeued() and (RUNS / name).is_dir():
        return (RUNS / name).resolve()
    return remembered_folder(wire)


def _made(folder: Path) -> Path:
    """The folder; where another host has no file system in common with this one, one here, whose rows go there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="quorate-records-"))
    return folder


@dataclass
class _Kept:
    """One of each worker."""

    folder: Path | None = None
    """The folder if another launcher than ours has started the run, on rank 0, which prints the closing line."""
    writing: Writing | None = None
    """Writes to loggers, on rank 0."""
    transfer: RecordTransfer | None = None
    """The transfer of records of a run on several hosts."""


def _end(place: Place, recorder: Recorder, *, is_real: bool) -> None:
    timers = place.context(Timing).timers
    steps, peak = timers[0].steps if timers else 0, _peak_bytes() if is_real else None
    now = place.wire.clock.now()
    place.context(MemoryUse).write(now, steps)
    load = place.context(HostLoad).row(now)
    if load is not None:
        recorder.hold(load)
    recorder.write(End(time=now, steps=steps, peak_bytes=peak))
    recorder.close()
    transfer = place.context(_Kept).transfer
    if transfer is not None:
        transfer.close(HOME_WITHIN)


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def flush_records(place: Place) -> None:
    """Write what a worker holds that ends badly."""
    recorder, kept = place.context(Timing).recorder, place.context(_Kept)
    transfer = kept.transfer
    if kept.writing is not None:
        kept.writing.is_well = False
    if recorder is not None:
        recorder.close()
    if transfer is not None:
        transfer.close(LAST_WORDS)


def leave_records(place: Place, *, is_well: bool) -> None:
    """Keep nothing for others any more; before a bad end they have a moment to send their last rows."""
    transfer = place.context(_Kept).transfer
    if transfer is not None:
        if not is_well:
            transfer.wait_for_others(LAST_WORDS)
        transfer.leave()


def say_closing_line(place: Place) -> None:
    """Say what `quorate run` would say at the end, where another launcher has started the run; called on every worker,
    when all have written their records."""
    folder = place.context(_Kept).folder
    if folder is None:
        return
    # Reports are above this layer, and their sentence is the last that a worker has to do with.
    line = importlib.import_module("quorate.report.closing").closing_line(Path(os.path.relpath(folder)))
    if line is not None:
        tell(f"quorate: {line}\n")


def log(**values: float | int | str | bool | None) -> None:
    """Write `values` to this worker's records, with the step and the time.

    Numbers of rank 0 also go to the loggers of the run. Reports draw every number; `quorate compare --metric NAME`
    compares by one. Without records nothing happens.

    Args:
        values: Numbers, text, booleans, None, or tensors of one number, by name.

    Raises:
        ConfigurationError: `quorate.join()` was not called, or a value is none of these.

    Example:
        >>> quorate.log(accuracy=0.93, learning_rate=0.1)
    """
    place = current.here()
    plain = _plain(values)
    recorder = place.context(Timing).recorder
    if recorder is None:
        return
    timers = place.context(Timing).timers
    step = timers[0].steps if timers else 0
    recorder.write(Log(step=step, time=place.wire.clock.now(), values=plain))


def _plain(values: Mapping[str, Any]) -> dict[str, object]:
    plain: dict[str, object] = {}
    for name, value in values.items():
        number = value
        if hasattr(value, "item"):
            with suppress(ValueError, RuntimeError):  # more than one number: refused below
                number = value.item()
        if not isinstance(number, bool | int | float | str | None):
            raise ConfigurationError(
                f"quorate.log takes numbers, text and tensors with one element, but {name} is a {type(value).__name__}"
            )
        plain[name] = number
    return plain
