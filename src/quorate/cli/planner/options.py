"""What `quorate plan` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.cli.options import argument, option
from quorate.cli.values import bytes_per_second_from, seconds_from
from quorate.core.quantities import bytes_from


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The command line, as written."""

    model: str = argument("A training script, or gpt:hidden=H,layers=L,heads=A,sequence=S,vocabulary=V.", "MODEL")
    arguments: list[str] = argument("What the script is given, untouched.", "[ARGS]...", default=[])
    workers: int | None = option("How many.", "-n", "--workers")
    memory: int | None = option("Of each worker, such as 80GB.", reads=bytes_from)
    bandwidth: float | None = option(
        "Of the port of a host, or of a worker without --per-host, such as 10Gbit.", reads=bytes_per_second_from
    )
    latency: float | None = option("Of a message there (50us).", reads=seconds_from)
    per_host: int | None = option("Workers of each host, which share its port.", metavar="H")
    inside: str | None = option("How workers of a host reach each other, with --per-host.", metavar="LATENCY:BANDWIDTH")
    cores: int | None = option("How many workers of a host compute at a time, where they share cores (all).")
    batch: int | None = option("Examples of a step, of all workers (a script's own, times the workers).")
    flops: str | None = option("With gpt:, operations a second of a worker, such as 312T.")
    efficiency: float | None = option("With gpt:, the share of it that products of matrices reach (0.5).")
    memory_bandwidth: float | None = option(
        "With gpt:, of a worker's memory, such as 2000GB (what moves there takes no time).", reads=bytes_per_second_from
    )
    strategies: list[str] = option(
        "Between replicas: all-reduce, quorum, local-sgd, d-psgd; may be repeated (all four).", "--strategy", default=[]
    )
    limits: list[str] = option("AXIS=N: no longer than this; may be repeated.", "--at-most", default=[])
    no_overlap: bool = option("Exchanges and computing take turns.", default=False)
    as_json: bool = option("As one JSON object.", "--json", default=False)
