"""How many virtual workers fit into a minute?

256 workers do 100 all-reduces of a 10,000-element gradient; 10,000 workers that only wait (modelled compute times and a
barrier) do 20 rounds. Whole runs, thread starts included.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import record


def seconds(size: int, task: Callable[[object], None]) -> float:
    """How long a world of `size` workers takes for `task`."""
    from quorate.wire.virtual.world import VirtualWorld

    begin = time.perf_counter()
    VirtualWorld(size).run(task)
    return time.perf_counter() - begin


def main() -> int:
    options = record.arguments(__doc__ or "").parse_args()
    import torch
    from rich.progress import track

    from quorate.core.contracts import Wire

    repeats, rounds = (2, 4) if options.quick else (5, 20)

    def reduces(wire: Wire) -> None:
        gradient = torch.ones(10_000)
        for _ in range(100):
            wire.all_reduce(gradient.fill_(1.0)).wait()

    def waits(wire: Wire) -> None:
        for _ in range(rounds):
            wire.clock.compute(1.0)
            wire.barrier().wait()

    report = record.Report("virtual_world", {"repeats": repeats, "rounds": rounds})
    times = [seconds(256, reduces) for _ in track(range(repeats), "256 workers", disable=not sys.stderr.isatty())]
    report.rows.append(record.figure("256 workers, 100 all-reduces of 10,000: seconds", times))
    report.bar("256 workers, 100 all-reduces: seconds", report.rows[-1].median, at_most=20.0)
    report.rows.append(record.figure(f"10,000 workers, {rounds} rounds: seconds", [seconds(10_000, waits)]))
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
