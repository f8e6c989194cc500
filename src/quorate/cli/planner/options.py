"""The options of `quorate plan`."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.cli.options import ARGUMENTS, NUMBER, RATE, SIZE, TIME, N, argument, option
from quorate.core.quantities import bytes_from, bytes_per_second_from, seconds_from


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of `quorate plan`."""

    model: str = argument("A training script, or gpt:hidden=H,layers=L,heads=A,sequence=S,vocabulary=V.", "MODEL")
    arguments: list[str] = argument(ARGUMENTS, "[ARGS]...", default=[])
    workers: int | None = option("Number of workers.", "-n", "--workers", metavar=N)
    memory: int | None = option("Memory of each worker, such as 80GB.", reads=bytes_from, metavar=SIZE)
    bandwidth: float | None = option(
        "Bandwidth of a host's port, or of a worker's without --per-host, such as 10Gbit.",
        reads=bytes_per_second_from,
        metavar=RATE,
    )
    latency: float | None = option("Latency of a message there (default: 50us).", reads=seconds_from, metavar=TIME)
    per_host: int | None = option("Workers of each host, which share its port.", metavar=N)
    inside: str | None = option(
        "With --per-host: latency and bandwidth between workers of a host.", metavar="LATENCY:BANDWIDTH"
    )
    cores: int | None = option(
        "How many workers of a host compute at the same time, if they share cores (default: all).", metavar=N
    )
    batch: int | None = option(
        "Examples per step over all workers (default: the script's batch times the workers).", metavar=N
    )
    flops: str | None = option("With gpt: operations per second of a worker, such as 312T.", metavar=NUMBER)
    efficiency: float | None = option(
        "With gpt: the share of them that matrix products reach (default: 0.5).", metavar=NUMBER
    )
    memory_bandwidth: float | None = option(
        "With gpt: bandwidth of a worker's memory, such as 2000GB (default: no limit).",
        reads=bytes_per_second_from,
        metavar=RATE,
    )
    strategies: list[str] = option(
        "Between replicas: all-reduce, quorum, local-sgd, d-psgd; may be repeated (default: all four).",
        "--strategy",
        default=[],
        metavar="STRATEGY",
    )
    limits: list[str] = option(
        "The largest size of an axis; may be repeated.", "--at-most", default=[], metavar="AXIS=N"
    )
    no_overlap: bool = option("Assume that exchange and computation do not overlap.", default=False)
    tries: int | None = option(
        "Run N of the most promising layouts of a script on this machine, and put the fastest first.",
        "--try",
        metavar=N,
    )
    as_json: bool = option("Print one JSON object.", "--json", default=False)
