"""The options of `quorate compare`."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.cli.compare.command import TUNE, USUAL_FACTORS
from quorate.cli.compare.comparison import factors_from, seeds_from
from quorate.cli.compare.scaling import numbers_of_workers
from quorate.cli.config import read_config
from quorate.cli.options import (
    ARGUMENTS,
    BANDWIDTH,
    COMPUTE,
    CONFIG,
    DELAYS,
    ENV,
    HOSTS,
    IMBALANCE,
    LATENCY,
    NUMBER,
    PACE,
    PAIR,
    PRINT_CONFIG,
    RATE,
    SHARES,
    SILENCE,
    SSH,
    TIME,
    WORKLOAD_SETTING,
    N,
    argument,
    option,
)
from quorate.cli.values import bytes_per_second_from, limit_from, seconds_from
from quorate.compare.plan import TIMEOUT


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The options of `quorate compare`."""

    subject: str | None = argument(
        "A workload (quorate list workloads), or a training script.", "SUBJECT", default=None
    )
    arguments: list[str] = argument(ARGUMENTS, "[ARGS]...", default=[])
    workers: int | None = option("Number of worker processes.", "-n", metavar=N)
    numbers: tuple[int, ...] | None = option(
        "Compare several numbers of workers: how fast is each, and what does it cost?",
        "--workers",
        metavar="N,N,…",
        reads=numbers_of_workers,
    )
    scaling: str | None = option(
        "With --workers: keep the batch of each worker (weak), the batch of all (strong), or try both.",
        metavar="weak|strong|both",
    )
    most: int | None = option(
        "With --workers: the largest number run here (default: the cores); larger ones are simulated.", metavar=N
    )
    price: float | None = option("With --workers: the price of one worker for one hour.", metavar=NUMBER)
    hosts: str | None = option(HOSTS, metavar="HOST:N,…")
    ssh: str | None = option(SSH, metavar="COMMAND")
    env: list[str] = option(ENV, "--env", default=[], metavar="NAME[=VALUE]")
    silence: str | None = option(SILENCE, metavar=TIME)
    virtual: int | None = option("Number of virtual workers; in place of -n.", metavar=N)
    strategies: list[str] = option(
        "A strategy to compare, NAME or NAME:key=value,…; may be repeated (default: all-reduce).",
        "--strategy",
        default=[],
        metavar="STRATEGY",
    )
    baseline: str | None = option(
        "What the others are compared with: ddp, or a strategy (default: the first one).", metavar="NAME"
    )
    seeds: tuple[int, ...] | None = option(
        "How many seeds (default: 3), or which: 1,2,5.", reads=seeds_from, metavar="N or N,N,…"
    )
    epochs: float | None = option("Epochs of a workload, over all workers.", metavar=NUMBER)
    seconds: float | None = option(
        "Give every strategy equal time, in seconds or such as 30min, in place of equal work.",
        reads=limit_from,
        metavar=TIME,
    )
    target: float | None = option("The quality to reach; the time to it is compared.", metavar=NUMBER)
    stops: bool = option("End a run when it reaches the target.", "--stop-at-target", default=False)
    metric: str | None = option("The name under which a script logs its quality.", metavar="NAME")
    higher: bool | None = option("Whether higher or lower values of it are better.", "--higher/--lower")
    imbalance: str | None = option(IMBALANCE, metavar=DELAYS)
    pace: str | None = option(PACE, metavar=TIME)
    share: str | None = option("How the data is divided.", metavar=SHARES)
    tune: tuple[float, ...] | None = option(
        "First search the best learning rate of each strategy, among factors of its own.",
        TUNE,
        metavar=f"[{USUAL_FACTORS}]",
        reads=factors_from,
    )
    workload_settings: list[str] = option(WORKLOAD_SETTING, "--workload-set", default=[], metavar=PAIR)
    batch: int | None = option("Examples of a workload per worker and step.", metavar=N)
    evaluations: int | None = option("How often a workload is evaluated, at equal distances.", metavar=N)
    name: str | None = option("Keep everything in runs/NAME.", metavar="NAME")
    again: str | None = option("Run what is missing of a comparison.", "--continue", metavar="FOLDER")
    timeout: float | None = option(
        f"How long a run may take before it counts as failed (default: {TIMEOUT:g}s).",
        reads=seconds_from,
        metavar=TIME,
    )
    compute: str | None = option(COMPUTE, metavar=TIME)
    latency: float | None = option(LATENCY, reads=seconds_from, metavar=TIME)
    bandwidth: float | None = option(BANDWIDTH, reads=bytes_per_second_from, metavar=RATE)
    config: str | None = option(CONFIG, metavar="FILE", eager=read_config)
    print_config: bool = option(PRINT_CONFIG, default=False)
    dry_run: bool = option("Print what would run, and run nothing.", default=False)
    as_json: bool = option("Print summary.json (with --dry-run, the plan).", "--json", default=False)
