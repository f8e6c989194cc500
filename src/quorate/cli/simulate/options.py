"""What `quorate simulate` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.cli.config import read_config
from quorate.cli.options import CONFIG, option


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """The command line, as written."""

    strategies: list[str] = option(
        "NAME or NAME:key=value,…; may be repeated (all-reduce and quorum).", "--strategy", default=[]
    )
    sizes: str | None = option("How many, or several numbers: 8,64,512 (8).", "-n", "--workers", metavar="N")
    steps: int | None = option("Of the fastest worker (100).")
    compute: str | None = option("Seconds of a step: constant:10ms, lognormal:10ms:0.5, trace:FILE.")
    pace: str | None = option("How long a step lasts at least: 280ms, trace:NAME.")
    imbalances: list[str] = option(
        "Who is late: one-of:200ms, rank:3:x2, none; may be repeated.", "--imbalance", default=[]
    )
    networks: list[str] = option(
        "LATENCY:BANDWIDTH (50us:10Gbit), :mesh, :halving, :per-host=8; may be repeated.", "--network", default=[]
    )
    coding: str | None = option(
        "Numbers a worker encodes and decodes a second, under compress: 200M:1B, none (as measured here).",
        metavar="ENCODE:DECODE",
    )
    parameters: str | None = option("Numbers that are agreed on, such as 25M (1M).")
    batch: int | None = option("Examples per worker and step.")
    seed: int | None = option("Of everything drawn (0).")
    failures: str | None = option("How workers fail: mtbf=1y,repair=30min,restart=5min,… Tells goodput and uptime.")
    recovery: str | None = option("With --failures: what is done then: detect=10s,reshard=20s,slice=64,…")
    learners: str | None = option("With --failures: in how many learners, or several numbers: 1,2,8 (8).", metavar="M")
    seconds: str | None = option("With --failures: how long: 180, 6h, 30d (30d).")
    like: list[str] = option(
        "Take times from a run's records; further runs tell what exchanges cost.", metavar="RUN", default=[]
    )
    check: bool = option("With --like: status 1 unless the run itself is told within 10%.", default=False)
    real: str | None = option("With real gradients of this workload, in the virtual world.", metavar="WORKLOAD")
    epochs: float | None = option("With --real: over all workers.")
    workload_settings: list[str] = option(
        "With --real: a setting of the workload, key=value.", "--workload-set", default=[]
    )
    records: bool = option(
        "Foresee the published records of ResNet-50 on ImageNet from data sheets, and nothing else.", default=False
    )
    name: str | None = option("Keep figures and picture in runs/NAME.")
    picture: str | None = option("Write the picture there as well.", metavar="FILE.svg")
    config: str | None = option(CONFIG, metavar="FILE", eager=read_config)
    print_config: bool = option("Show the options as TOML for --config, and simulate nothing.", default=False)
    dry_run: bool = option("Say what would be simulated, and do nothing.", default=False)
    as_json: bool = option("Show simulate.json (with --dry-run the plan).", "--json", default=False)
