"""Sums of tensors among processes of one host, in several ways that take turns; the first way is gloo's."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import record
import workers

WORKERS = (2, 4)
GLOO = "gloo"


def in_turns(
    world: Any, ways: Sequence[str], numel: int, counts: tuple[int, int, int], once: Callable[[str], Any]
) -> None:
    """One of the processes, for tensors of `numel` numbers: `once(way)` sums one; rank 0 prints one JSON line per turn.

    `counts` are turns, numbers that are summed in a turn, and sums in a turn at most.
    """
    turns, numbers, most = counts
    count = max(3, min(most, numbers // numel))

    def block(way: str, count: int) -> float:
        world.barrier()
        begin = time.perf_counter()
        for _ in range(count):
            once(way)
        return (time.perf_counter() - begin) / count

    for way in ways:
        block(way, 3)
    for turn in range(turns):
        first = turn % len(ways)
        seconds = {way: block(way, count) for way in (*ways[first:], *ways[:first])}
        if world.is_first:
            print(json.dumps({"numel": numel, "seconds": seconds}), flush=True)


def run(
    name: str,
    about: str,
    script: str,
    ways: Sequence[str],
    numels: Sequence[int],
    turns: int,
    *,
    bar: float | None = None,
) -> int:
    """Start the processes of `script`, and report; `bar` is for the median ratios of gloo's time."""
    parser = record.arguments(about)
    parser.add_argument("--turns", type=int, default=turns, help=f"of all ways, for each size ({turns})")
    options = parser.parse_args()
    turns, numels = (3, numels[1::2]) if options.quick else (options.turns, numels)

    from rich.progress import Progress

    report = record.Report(name, {"workers": list(WORKERS), "turns": turns, "threads": 1})
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("turns", total=turns * len(numels) * len(WORKERS))
        for size in WORKERS:
            found: dict[int, list[dict[str, float]]] = {numel: [] for numel in numels}
            for line in workers.json_lines(script, size, "--worker", str(turns), json.dumps(numels)):
                row = json.loads(line)
                found[row["numel"]].append(row["seconds"])
                progress.update(task, advance=1, description=f"{size} workers, {row['numel']} numbers")
            for numel, rows in found.items():
                _tell(report, f"{size} workers, {numel} numbers", ways, rows, bar)
    return report.show(options)


def _tell(
    report: record.Report, name: str, ways: Sequence[str], rows: Sequence[dict[str, float]], bar: float | None
) -> None:
    for way in ways:
        report.rows.append(record.figure(f"{name}: ms, {way}", [1e3 * row[way] for row in rows]))
    for way in ways[1:]:
        ratio = record.figure(f"{name}: gloo / {way}", [row[GLOO] / row[way] for row in rows])
        report.rows.append(ratio)
        if bar is not None:
            report.bar(f"{name}: median ratio, {way}", ratio.median, at_least=bar)
