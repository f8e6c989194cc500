"""`quorate doctor --memory`: what a worker of a script will hold, for ZeRO 0 to 3 over so many shards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quorate.cli.doctor.trials import OF_LAUNCHERS
from quorate.cli.scripts import check_script
from quorate.core.axes import offload_of
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.core.quantities import bytes_from
from quorate.launch.local.orphans import death_with_parent
from quorate.launch.local.verdict import status_in_words
from quorate.report.wording import bytes_in_words, number_in_words

PROGRAM = (sys.executable, "-m", "quorate.launch.warm.measuring")
SECONDS = 1800.0
"""Time limit of a script up to its first step, in seconds."""
USUAL_SHARDS = (2, 4, 8, 16)
MOST_SHARDS = 1 << 20
_WIDE = 150
_BLOCKS_SHOWN = 4
_COLUMNS = ("parameters", "gradients", "optimizer", "gathered", "exchanged", "activations")


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


def check_asked(script: str | None, shards: int | None, fits: str | None, offload: str | None) -> int | None:
    """Check the options; return the bytes of `fits`. Raises `ConfigurationError`."""
    if script is None:
        raise ConfigurationError("--memory needs a script: quorate doctor --memory SCRIPT [ARGUMENT ...]")
    check_script(script)
    offload_of(offload)
    if shards is not None and not 1 <= shards <= MOST_SHARDS:
        raise ConfigurationError(f"--shards is a number of workers from 1 to {MOST_SHARDS:,}, not {shards}")
    return None if fits is None else bytes_from(fits)


def measured(
    script: str,
    arguments: Sequence[str],
    seconds: float = SECONDS,
    program: Sequence[str] = PROGRAM,
    steps: int = 1,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run `script` in one process of `program` for `steps` steps; return its answer. Its output goes to stderr.

    `environment` is added to this process's environment. Raises `ConfigurationError` for a script that makes fewer
    steps, and `QuorateError` for one that fails before, or takes longer than `seconds`.
    """
    lacking = "without an optimizer.step()" if steps == 1 else f"before its optimizer.step() number {steps}"
    last = "its first optimizer.step()" if steps == 1 else f"its {steps} steps that are looked at"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}
    with tempfile.TemporaryDirectory(prefix="quorate-doctor-") as folder:
        path = Path(folder, "answer.json")
        process = subprocess.Popen(
            [*program, str(path), script, *arguments],
            env={**kept, **(environment or {})},
            stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), preexec_fn=death_with_parent(),
        )  # fmt: skip
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            made = "no step" if steps == 1 else f"fewer than {steps} steps"
            raise QuorateError(f"{script} has made {made} within {seconds:g} s") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if path.exists():
            answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return answer
    if status == 0:
        raise ConfigurationError(f"{script} has ended {lacking}, so there is nothing to measure")
    raise QuorateError(f"{script} {status_in_words(status)} before the end of {last}")


def lines(answer: Mapping[str, Any], shards: int | None, offload: str | None = None) -> Iterator[Line]:
    """Yield ZeRO 0, and 1 to 3 over `shards` or the usual numbers; `offload` None: as in the script."""
    from quorate.sharding.memory import MODES, Model, by_formula, held, numbers_sent

    model = Model.from_json(answer["memory"])
    rests = offload_of(offload or answer.get("offload"))
    numbers = USUAL_SHARDS if shards is None else (shards,)
    for count in (1, *(number for number in numbers if number > 1)):
        for zero in MODES:
            if (zero == 0) == (count == 1) or (zero == 0 and count == numbers[0]):
                sizes = held(model, zero, count, rests)
                yield Line(
                    zero=zero, workers=count, held=asdict(sizes), total=sizes.total,
                    by_formula=by_formula(model, zero, count), numbers_sent=numbers_sent(model, zero, count),
                )  # fmt: skip


def as_json(answer: Mapping[str, Any], layouts: Sequence[Line], limit: int | None) -> str:
    """Return the measurement and the layouts as JSON."""
    about = {name: value for name, value in answer.items() if name != "memory"}
    fits = [None if limit is None else layout.total <= limit for layout in layouts]
    rows = [{**asdict(layout), "fits": fit} for layout, fit in zip(layouts, fits, strict=True)]
    strategies = _strategies(answer)
    return json.dumps(
        {**about, "limit": limit, "workers": rows, "strategies": strategies}, indent=2, ensure_ascii=False
    )


def _strategies(answer: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of a worker between backward passes and steps, by strategy; none with offloading or on a GPU."""
    from quorate.sharding.memory import VECTORS, Model, held_between_replicas

    if answer["device"] != "cpu" or answer.get("offload"):
        return {}
    model = Model.from_json(answer["memory"])
    return {strategy: held_between_replicas(model, strategy) for strategy in VECTORS}


def show(answer: Mapping[str, Any], layouts: Sequence[Line], limit: int | None) -> None:
    """Print a table of the layouts, and the lines that explain it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    on_host = ("host",) if any(layout.held["host"] for layout in layouts) else ()
    for heading in (
        "ZeRO",
        "workers",
        *_COLUMNS,
        "together",
        *on_host,
        "numbers sent",
        *(["fits"] if limit is not None else []),
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for layout in layouts:
        cells = [bytes_in_words(layout.held[name]) if layout.held[name] else "–" for name in _COLUMNS]
        sums = [bytes_in_words(layout.total), *(bytes_in_words(layout.held[name]) for name in on_host)]
        words = [str(layout.zero), str(layout.workers), *cells, *sums, number_in_words(layout.numbers_sent)]
        fit = [] if limit is None else [Text("yes", "green") if layout.total <= limit else Text("no", "bold red")]
        table.add_row(*words, *fit)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    console.print(*_about(answer), sep="\n", soft_wrap=True)
    console.print(table)
    console.print(*_meaning(layouts, limit), sep="\n", soft_wrap=True)
    if strategies := _strategies(answer):
        shares = ", ".join(f"{strategy} {bytes_in_words(size)}" for strategy, size in strategies.items())
        console.print(f"Of two replicas on a host each has, after a backward pass or a step: {shares}.", soft_wrap=True)


def _about(answer: Mapping[str, Any]) -> Iterator[str]:
    sizes = answer["memory"]["sizes"]
    numbers = sum(entry["numbers"] for entry in sizes)
    frozen = numbers - sum(entry["numbers"] for entry in sizes if entry["is_trained"])
    still = f", {frozen:,} of them frozen" if frozen else ""
    used = f", used in {answer['precision']}" if answer["precision"] else ""
    yield f"{answer['model']}: {numbers:,} numbers{still}{used}, on {answer['device']}; {answer['optimizer']}"
    yield f"blocks: {answer['blocks']}"
    most = sorted(answer["activations"].items(), key=lambda entry: -entry[1])
    shown = ", ".join(f"{name or 'in no block'} {bytes_in_words(size)}" for name, size in most[:_BLOCKS_SHOWN])
    more = f", and {len(most) - _BLOCKS_SHOWN} more" if len(most) > _BLOCKS_SHOWN else ""
    yield f"activations of one batch: {shown or 'none'}{more}\n"


def _meaning(layouts: Sequence[Line], limit: int | None) -> Iterator[str]:
    yield (
        "\nBytes of each worker. Whole parameters (gathered) and whole gradients (exchanged) come and go; together is "
        "as if all were there at once, without what torch loads, single operations need, and messages and the strategy "
        "keep."
    )
    if any(layout.held["host"] for layout in layouts):
        yield "The host has, for each worker, what is offloaded to its memory, or to files that are mapped into it."
    if limit is not None:
        fitting = [layout for layout in layouts if layout.total <= limit]
        first = min(fitting, key=lambda layout: (layout.workers, layout.zero), default=None)
        room = bytes_in_words(limit)
        if first is None:
            yield f"None of these fits into {room}."
        elif first.workers == 1:
            yield f"One worker alone fits into {room}."
        else:
            yield f"The first that fits into {room} is ZeRO {first.zero} over {first.workers} workers."
