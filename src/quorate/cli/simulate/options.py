"""The options of `quorate simulate`."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.cli.config import read_config
from quorate.cli.options import CONFIG, DELAYS, NUMBER, PAIR, PRINT_CONFIG, TIME, N, option


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """The options of `quorate simulate`."""

    strategies: list[str] = option(
        "NAME or NAME:key=value,…; may be repeated (default: all-reduce and quorum).",
        "--strategy",
        default=[],
        metavar="STRATEGY",
    )
    sizes: str | None = option(
        "How many workers, or several numbers: 8,64,512 (default: 8).", "-n", "--workers", metavar="N,…"
    )
    steps: int | None = option("Steps of the fastest worker (default: 100).", metavar=N)
    compute: str | None = option("Time of a step: constant:10ms, lognormal:10ms:0.5, trace:FILE.", metavar=TIME)
    pace: str | None = option("The shortest time a step may take: 280ms, trace:NAME.", metavar=TIME)
    imbalances: list[str] = option(
        "Who is late: one-of:200ms, rank:3:x2, none; may be repeated.", "--imbalance", default=[], metavar=DELAYS
    )
    networks: list[str] = option(
        "The network, with :mesh, :halving or :per-host=8; may be repeated (default: 50us:10Gbit).",
        "--network",
        default=[],
        metavar="LATENCY:BANDWIDTH",
    )
    coding: str | None = option(
        "Numbers per second a worker encodes and decodes with compress: 200M:1B, or none (default: measured here).",
        metavar="ENCODE:DECODE",
    )
    parameters: str | None = option("Number of parameters, such as 25M (default: 1M).", metavar=N)
    batch: int | None = option("Examples per worker and step.", metavar=N)
    seed: int | None = option("The seed of everything drawn at random (default: 0).", metavar=N)
    failures: str | None = option(
        "How workers fail, for goodput and uptime: mtbf=1y,repair=30min,restart=5min,…", metavar="FAILURES"
    )
    recovery: str | None = option(
        "With --failures: how training recovers: detect=10s,reshard=20s,slice=64,…", metavar="RECOVERY"
    )
    learners: str | None = option(
        "With --failures: number of learners, or several numbers: 1,2,8 (default: 8).", metavar="N,…"
    )
    seconds: str | None = option(
        "With --failures: how long to simulate: 180 (seconds), 6h, 30d (default: 30d).", metavar=TIME
    )
    like: list[str] = option(
        "Take times from the records of a run; further runs give the cost of exchanges.", metavar="RUN", default=[]
    )
    check: bool = option(
        "With --like: exit with status 1 unless the run itself is predicted within 10%.", default=False
    )
    real: str | None = option("Train this workload with real gradients, in the virtual world.", metavar="WORKLOAD")
    epochs: float | None = option("With --real: epochs, over all workers.", metavar=NUMBER)
    workload_settings: list[str] = option(
        "With --real: a setting of the workload; may be repeated.", "--workload-set", default=[], metavar=PAIR
    )
    records: bool = option("Only predict the published ResNet-50 ImageNet records, from data sheets.", default=False)
    name: str | None = option("Keep figures and picture in runs/NAME.", metavar="NAME")
    picture: str | None = option("Write the picture to this file as well.", metavar="FILE.svg")
    config: str | None = option(CONFIG, metavar="FILE", eager=read_config)
    print_config: bool = option(PRINT_CONFIG, default=False)
    dry_run: bool = option("Print what would be simulated, and simulate nothing.", default=False)
    as_json: bool = option("Print simulate.json (with --dry-run, the plan).", "--json", default=False)
