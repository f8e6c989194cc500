"""The options of `quorate run`, and its plan: checked, in words, and as `run.json`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

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
    PACE,
    PAIR,
    PRINT_CONFIG,
    RATE,
    SETTING,
    SHARES,
    SILENCE,
    SSH,
    TIME,
    N,
    argument,
    option,
)
from quorate.cli.resume import read_resumed
from quorate.cli.values import bytes_per_second_from, limit_from, seconds_from
from quorate.launch.local.chaos import ChaosPlan
from quorate.launch.local.newcomers import Room
from quorate.launch.warm.request import RunRequest
from quorate.report.wording import counted


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `quorate run`."""

    script: str = argument("The training script.", "SCRIPT")
    arguments: list[str] = argument(ARGUMENTS, "[ARGS]...", default=[])
    workers: int | None = option("Number of worker processes (default: 1).", "-n", metavar=N)
    hosts: str | None = option(HOSTS, metavar="HOST:N,…")
    ssh: str | None = option(SSH, metavar="COMMAND")
    env: list[str] = option(ENV, "--env", default=[], metavar="NAME[=VALUE]")
    silence: str | None = option(SILENCE, metavar=TIME)
    virtual: int | None = option("Number of virtual workers in this process; in place of -n.", metavar=N)
    strategy: str | None = option("Replace the script's strategy: NAME or NAME:key=value,…", metavar="STRATEGY")
    settings: list[str] = option(SETTING, "--set", default=[], metavar=PAIR)
    name: str | None = option("Keep the records in runs/NAME.", metavar="NAME")
    resume: str | None = option(
        "Continue a run in its folder, by default with its script and options.", metavar="RUN", eager=read_resumed
    )
    is_module: bool = option("SCRIPT is a module, as after python -m.", "-m", "--module", default=False)
    seed: int | None = option("The seed of data order, random generators and delays.", metavar=N)
    imbalance: str | None = option(IMBALANCE, metavar=DELAYS)
    attack: str | None = option(
        "Let the last workers send wrong gradients: sign-flip:2, noise, nan, …", metavar="ATTACK"
    )
    pace: str | None = option(PACE, metavar=TIME)
    share: str | None = option("How the data is divided, in place of the script's choice.", metavar=SHARES)
    mesh: str | None = option("Divide the model: replicas=R,shards=S,tensor=T.", metavar="AXES")
    zero: int | None = option("The ZeRO stage of the shards.", metavar="1|2|3")
    offload: str | None = option(
        "What a model in shards keeps in host memory or on disk.", metavar="optimizer|all|disk"
    )
    seconds: float | None = option(
        "End the training after this many seconds, or a time such as 30min.", reads=limit_from, metavar=TIME
    )
    failures: str | None = option(
        "How workers fail, with --chaos: mtbf=30s,repair=2s,stop=0.2:3s,slow=0.1:x4:5s.", metavar="FAILURES"
    )
    chaos: int | None = option("Kill, stop and slow down workers on the schedule of this seed.", metavar="SEED")
    restart: int | None = option(
        "How many dead workers are replaced by new ones (default: 0; 64 with --chaos).", metavar=N
    )
    spare: int = option("How many more workers may join later by `quorate join`.", default=0, metavar=N)
    servers: int = option("Number of extra ranks that only serve parameters.", default=0, metavar=N)
    cold: bool = option("Start every worker as a new program instead of forking.", default=False)
    compute: str | None = option(COMPUTE, metavar=TIME)
    latency: float | None = option(LATENCY, reads=seconds_from, metavar=TIME)
    """Seconds."""
    bandwidth: float | None = option(BANDWIDTH, reads=bytes_per_second_from, metavar=RATE)
    """Bytes per second."""
    config: str | None = option(CONFIG, metavar="FILE", eager=read_config)
    log: str | None = option("Loggers: tensorboard,wandb,mlflow, or none.", metavar="NAME,…")
    no_progress: bool = option("Do not show progress.", default=False)
    watch: bool = option("Serve a live page of the run to browsers on this machine.", default=False)
    print_config: bool = option(PRINT_CONFIG, default=False)
    dry_run: bool = option("Print what would start, and start nothing.", default=False)
    as_json: bool = option("With --dry-run, print it as one JSON object.", "--json", default=False)


FORKED = 3
"""Processes of a run, from which on one more that imports torch for them is worth its while."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A checked run, ready to start."""

    request: RunRequest
    room: Room
    """For workers that come later."""
    chaos: ChaosPlan | None = None
    is_cold: bool = False
    """Whether every worker is a program of its own."""
    shows_progress: bool = True
    is_watched: bool = False
    omp_threads: str = field(default_factory=lambda: os.environ.get("OMP_NUM_THREADS", "1"))

    @property
    def forks(self) -> bool:
        """Whether all workers but rank 0 are forked from a process that has imported torch, as that saves imports."""
        request = self.request
        processes = request.size + request.servers + self.room.all
        are_here = request.virtual is None and request.hosts is None
        return are_here and not self.is_cold and (processes >= FORKED or self.chaos is not None)

    @property
    def in_words(self) -> str:
        """The run in one line."""
        request, chosen = self.request, self.request.overrides
        kind = "worker" if request.virtual is None else "virtual worker"
        settings = ", ".join(f"{key}={value}" for key, value in chosen.settings.items())
        strategy = chosen.strategy or "the script's own"
        beside: dict[str, object] = {"imbalance": chosen.imbalance, "pace": chosen.pace, "share": chosen.share}
        beside |= {"mesh": chosen.mesh, "zero": chosen.zero, "offload": chosen.offload, "seed": chosen.seed}
        details = "".join(f", {name}: {value}" for name, value in beside.items() if value is not None)
        if self.chaos is not None:
            details += f", chaos of seed {self.chaos.seed}: {self.chaos.failures.text}"
        if self.room.all:
            details += f", up to {counted(self.room.all, 'more worker')}"
        beside_them = f" and {counted(request.servers, 'server')}" if request.servers else ""
        threads = f", OMP_NUM_THREADS={self.omp_threads}" if request.virtual is None else ""
        where = "" if request.hosts is None else f" on {request.hosts.layout.in_words}"
        return (
            f"{counted(request.size, kind)}{beside_them}{where} of {request.script}, strategy: {strategy}"
            f"{f' ({settings})' if settings else ''}{details}{threads}; records in {request.folder}"
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """The contents of `run.json`."""
        return {**self.request.as_json(self.omp_threads), "restart": self.room.restarts, "spare": self.room.more}
