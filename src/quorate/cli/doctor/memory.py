"""`quorate doctor --memory`: what a worker of a script will hold, for ZeRO 0 to 3 over so many shards."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quorate.cli.doctor.trials import environment_of_trials
from quorate.cli.tables import paragraphs, table, terminal_width
from quorate.core.axes import offload_of
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.launch.local.children import Command, Programs, tell_group, wait
from quorate.launch.local.verdict import status_in_words
from quorate.launch.warm.forks import kept
from quorate.report.wording import bytes_in_words, number_in_words

PROGRAM = "quorate.launch.warm.measuring"
SECONDS = 1800.0
"""Time limit of a script up to its first step, in seconds."""
USUAL_SHARDS = (2, 4, 8, 16)
MOST_SHARDS = 1 << 20
_BLOCKS_SHOWN = 4
_COLUMNS = {
    "params": "parameters", "grads": "gradients", "optim": "optimizer", "gather": "gathered", "exch": "exchanged",
    "activ": "activations",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Line:
    """The memory of a worker in one layout of the model."""

    zero: int
    workers: int
    """Workers of one replica; with ZeRO 0 each has a replica."""
    held: Mapping[str, int]
    total: int
    by_formula: float
    numbers_sent: float
    fits: bool | None
    """None if no limit was asked for."""


def measured(
    script: str,
    arguments: Sequence[str],
    seconds: float = SECONDS,
    program: str = PROGRAM,
    steps: int = 1,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run `script` in one process of the module `program` for `steps` steps; return its answer. It prints on stderr.

    `environment` is added to this process's environment. Raises `ConfigurationError` for a script that makes fewer
    steps, and `QuorateError` for one that fails before, or takes longer than `seconds`.
    """
    lacking = "without an optimizer.step()" if steps == 1 else f"before its optimizer.step() number {steps}"
    last = "its first optimizer.step()" if steps == 1 else f"its {steps} steps that are looked at"
    with tempfile.TemporaryDirectory(prefix="quorate-doctor-") as folder:
        path = Path(folder, "answer.json")
        words = [str(path), script, *arguments]
        with Programs() as programs:
            command = Command(script=program, is_module=True, arguments=words)
            child = (kept() or programs).start(command, {**environment_of_trials(), **(environment or {})}, _OnStderr())
            try:
                status = wait(child, seconds)
            finally:
                if child.poll() is None:
                    tell_group(child, signal.SIGKILL)
                    wait(child)
        if status is None:
            made = "no step" if steps == 1 else f"fewer than {steps} steps"
            raise QuorateError(f"{script} has made {made} within {seconds:g} s")
        if path.exists():
            answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return answer
    if status == 0:
        raise ConfigurationError(f"{script} has ended {lacking}, so there is nothing to measure")
    raise QuorateError(f"{script} {status_in_words(status)} before the end of {last}")


class _OnStderr:
    """The streams of a process whose output goes to stderr."""

    stdin: int | None = subprocess.DEVNULL

    def streams(self) -> tuple[int, int]:
        return sys.stderr.fileno(), 2

    def started(self) -> None:
        """They stay open."""


def lines(answer: Mapping[str, Any], shards: int | None, limit: int | None, offload: str | None) -> Iterator[Line]:
    """Yield ZeRO 0, and 1 to 3 over `shards` or the usual numbers; `offload` None: as in the script."""
    from quorate.sharding.memory import MODES, Model, by_formula, held, numbers_sent

    model = Model.from_json(answer["memory"])
    offloaded = offload_of(offload or answer.get("offload"))
    numbers = USUAL_SHARDS if shards is None else (shards,)
    for count in (1, *(number for number in numbers if number > 1)):
        for zero in MODES:
            if (zero == 0) == (count == 1) or (zero == 0 and count == numbers[0]):
                sizes = held(model, zero, count, offloaded)
                yield Line(
                    zero=zero, workers=count, held=asdict(sizes), total=sizes.total,
                    by_formula=by_formula(model, zero, count), numbers_sent=numbers_sent(model, zero, count),
                    fits=None if limit is None else sizes.total <= limit,
                )  # fmt: skip


def as_json(answer: Mapping[str, Any], layouts: Sequence[Line], limit: int | None) -> str:
    """Return the measurement and the layouts as JSON."""
    about = {name: value for name, value in answer.items() if name != "memory"}
    rows = [asdict(layout) for layout in layouts]
    about |= {"limit": limit, "workers": rows, "strategies": _strategies(answer)}
    return json.dumps(about, indent=2, ensure_ascii=False)


def _strategies(answer: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of a worker between backward passes and steps, by strategy; none with offloading or on a GPU."""
    from quorate.sharding.memory import VECTORS, Model, held_between_replicas

    if answer["device"] != "cpu" or answer.get("offload"):
        return {}
    model = Model.from_json(answer["memory"])
    return {strategy: held_between_replicas(model, strategy) for strategy in VECTORS}


def in_words(answer: Mapping[str, Any], layouts: Sequence[Line], limit: int | None) -> Iterator[str]:
    """Yield the model, a table of the layouts, and what it means; columns without bytes are left out."""
    sizes = answer["memory"]["sizes"]
    numbers = sum(entry["numbers"] for entry in sizes)
    frozen = numbers - sum(entry["numbers"] for entry in sizes if entry["is_trained"])
    still = f", {frozen:,} of them frozen" if frozen else ""
    used = f", used in {answer['precision']}" if answer["precision"] else ""
    model = f"{answer['model']}: {numbers:,} numbers{still}{used}, on {answer['device']}; {answer['optimizer']}"
    yield from paragraphs(model, f"blocks: {answer['blocks']}")
    most = sorted(answer["activations"].items(), key=lambda entry: -entry[1])
    shown = ", ".join(f"{name or 'in no block'} {bytes_in_words(size)}" for name, size in most[:_BLOCKS_SHOWN])
    more = f", and {len(most) - _BLOCKS_SHOWN} more" if len(most) > _BLOCKS_SHOWN else ""
    yield from paragraphs(f"activations of one batch: {shown or 'none'}{more}")
    yield ""

    kinds = {heading: kind for heading, kind in _COLUMNS.items() if any(layout.held[kind] for layout in layouts)}
    has_host = any(layout.held["host"] for layout in layouts)
    on_host = ["host"] if has_host else []
    heads = ["ZeRO", "N", *kinds, "total", *on_host, "sent", *([] if limit is None else ["fits"])]
    rows = []
    for layout in layouts:
        held = [bytes_in_words(layout.held[kind]) if layout.held[kind] else "–" for kind in kinds.values()]
        sums = [bytes_in_words(layout.total), *(bytes_in_words(layout.held[name]) for name in on_host)]
        fits = [] if layout.fits is None else ["yes" if layout.fits else "no"]
        sent = number_in_words(layout.numbers_sent)
        rows.append([str(layout.zero), str(layout.workers), *held, *sums, sent, *fits])
    yield from table(heads, rows, terminal_width(), keys=2)

    yield ""
    yield from paragraphs(
        "Bytes of each of N workers; sent: numbers in a step. Full parameters (gather) and gradients (exch) come and "
        "go; total is as if all were there at once, without libraries, single operations, messages, and what the "
        "strategy keeps."
    )
    if has_host:
        yield from paragraphs("host: what is offloaded to its memory, or to files, for each worker.")
    if strategies := _strategies(answer):
        yield ""
        yield from paragraphs("Each of two replicas on one host holds, after a backward pass or a step:")
        yield from (f"  {strategy} {bytes_in_words(size)}" for strategy, size in strategies.items())
    if limit is not None:
        fitting = [layout for layout in layouts if layout.fits]
        first = min(fitting, key=lambda layout: (layout.workers, layout.zero), default=None)
        room = bytes_in_words(limit)
        if first is None:
            yield f"None of these fits into {room}."
        elif first.workers == 1:
            yield f"One worker alone fits into {room}."
        else:
            yield f"The first that fits into {room} is ZeRO {first.zero} over {first.workers} workers."
