"""`quorate bench`: the rates of collectives and rounds between the workers of this machine or of several hosts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from quorate.cli.choices import check_workers
from quorate.cli.doctor import hosts as of_hosts
from quorate.cli.doctor.trials import in_run, objects_of
from quorate.cli.options import N, argument, command, option
from quorate.cli.tables import paragraphs, table, terminal_width
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import bytes_from, seconds_from
from quorate.launch.hosts.reach import Layout
from quorate.report.wording import counted, listed

OPERATIONS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "round")
"""The names of measurements: those of `launch.worker.bus_bandwidth`, and a round."""
PROGRAM = "quorate.launch.worker.bench"
USUAL_WORKERS = 2
SMALLEST, LARGEST = 1 << 10, 1 << 26
SECONDS = 0.1
LIMIT = 3600.0
"""Time limit of all measurements, in seconds."""
_MOST_BYTES = 1 << 34


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of `quorate bench`."""

    workers: int | None = option("Number of workers (default: 2).", "-n", "--workers", metavar=N)
    hosts: Layout | None = option("Workers on these hosts, over ssh.", metavar="A:N,B:N,…", reads=of_hosts.hosts_in)
    smallest: int = option(
        "The smallest size (default: 1KiB).", "--from", default=SMALLEST, metavar="BYTES", reads=bytes_from
    )
    largest: int = option(
        "The largest size (default: 64MiB).", "--to", default=LARGEST, metavar="BYTES", reads=bytes_from
    )
    seconds: float = option(
        "How long each size is repeated (default: 100ms).",
        "--repeat-for",
        default=SECONDS,
        metavar="TIME",
        reads=seconds_from,
    )
    picture: str | None = option("Draw bus bandwidths to this file.", metavar="FILE.svg")
    as_json: bool = option("Print one JSON object.", "--json", default=False)
    operations: list[str] = argument(
        f"{', '.join(OPERATIONS[:-1])} or {OPERATIONS[-1]} (default: all).", "[OPERATION]...", default=[]
    )


@command
def bench(context: typer.Context, options: BenchOptions) -> int:
    """Measure collectives and rounds of the workers, Quorate's beside those of torch.

    Sizes are powers of two between --from and --to. The columns are those of nccl-tests: time in microseconds, and
    algorithm and bus bandwidth in GB/s. A round is a step of quorum:wait_for=all on one parameter; beside it stands
    one of torch DDP. All operations take about a minute with two workers.
    """
    asked = _asked(options)
    workers = ["-n", str(options.workers or USUAL_WORKERS)]
    if options.hosts is not None:
        workers = ["--hosts", ",".join(f"{place.host}:{len(place.ranks)}" for place in options.hosts.places)]
    with in_run(workers) as words:
        about, *rows = _measured(
            [*words, PROGRAM, json.dumps(asked)], 2 * len(asked["operations"]) * len(asked["sizes"])
        )
    about |= {"workers": options.workers or USUAL_WORKERS}
    if options.hosts is not None:
        about |= {"workers": sum(len(place.ranks) for place in options.hosts.places)}
        about |= {"hosts": [place.host for place in options.hosts.places]}
    if options.picture is not None:
        from quorate.cli.bench_picture import picture

        title = "Collectives and rounds" if len(asked["operations"]) > 1 else f"The operation {asked['operations'][0]}"
        Path(options.picture).write_text(picture(rows, title, _about(about)), encoding="utf-8")
    typer.echo(json.dumps({**about, "rows": rows}, indent=2) if options.as_json else "\n".join(in_words(about, rows)))
    wrong = sorted({row["operation"] for row in rows if row["error"]})
    if wrong:
        typer.echo(f"quorate: wrong numbers from {listed(wrong)}: do not train on this machine", err=True)
    return int(bool(wrong))


def _asked(options: BenchOptions) -> dict[str, Any]:
    """Return what the program is asked. Raises `ConfigurationError` for wrong options."""
    unknown = [name for name in options.operations if name not in OPERATIONS]
    if unknown:
        raise ConfigurationError(f"there is no operation {unknown[0]!r}; those are {', '.join(OPERATIONS)}")
    check_workers(options.workers, None)
    if options.hosts is not None and options.workers is not None:
        raise ConfigurationError("with --hosts, their workers are written behind them, as in a:4,b:4; leave out -n")
    if options.workers == 1:
        raise ConfigurationError("one worker has nobody to exchange with; give -n 2 or more")
    if not 4 <= options.smallest <= options.largest <= _MOST_BYTES:
        raise ConfigurationError("sizes go from 4 bytes to 16GiB, and --from is at most --to")
    if options.seconds <= 0.0:
        raise ConfigurationError("--repeat-for takes a time above 0, such as 100ms")
    if options.picture is not None and (
        not options.picture.endswith(".svg") or not Path(options.picture).parent.is_dir()
    ):
        raise ConfigurationError(
            f"--picture {options.picture}: give a file name that ends in .svg, in a folder that exists"
        )
    sizes = [options.smallest]
    while 2 * sizes[-1] <= options.largest:
        sizes.append(2 * sizes[-1])
    operations = list(dict.fromkeys(options.operations)) or list(OPERATIONS)
    return {"operations": operations, "sizes": sizes, "seconds": options.seconds}


def _measured(words: Sequence[str], count: int) -> list[dict[str, Any]]:
    """Return the lines of the program, `count` at most and one before them; show progress on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("measuring", total=count)
        return objects_of(*words, seconds=LIMIT, counts=lambda lines: progress.update(task, completed=lines - 1))


def _about(about: Mapping[str, Any]) -> str:
    where = f"on {counted(len(about['hosts']), 'host')}" if "hosts" in about else "on one host"
    backend = f"torch uses {about['backend']}"
    return f"{about['workers']} workers {where}, {about['device']}; Quorate uses {about['network']}, and {backend}"


def in_words(about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table for each operation: a row for each size, and three columns for each way."""
    yield from paragraphs(f"{_about(about)}. Times in µs, bandwidths in GB/s.")
    ways = list(dict.fromkeys(row["way"] for row in rows))
    heads = ["size (B)", *(head for way in ways for head in (way, "algbw", "busbw"))]
    for name in dict.fromkeys(row["operation"] for row in rows):
        own = {(row["size"], row["way"]): row for row in rows if row["operation"] == name}
        yield from ("", name)
        sizes = sorted({size for size, _ in own})
        cells = [[f"{size:,}", *(x for way in ways for x in _cells(own.get((size, way))))] for size in sizes]
        yield from table(heads, cells, terminal_width())


def _cells(row: Mapping[str, Any] | None) -> list[str]:
    if row is None:
        return ["–"] * 3
    return [f"{1e6 * row['seconds']:,.1f}", *(f"{row[f'{kind}_bandwidth'] / 1e9:.3f}" for kind in ("algorithm", "bus"))]
