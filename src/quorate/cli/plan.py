"""What `quorate run` is asked for, as options and checked, and how it is told to people and to `run.json`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from quorate.cli.config import read_config
from quorate.cli.options import (
    ARGUMENTS,
    BANDWIDTH,
    CONFIG,
    ENV,
    HOSTS,
    IMBALANCE,
    LATENCY,
    PACE,
    SILENCE,
    SSH,
    argument,
    option,
)
from quorate.cli.resume import read_resumed
from quorate.cli.values import bytes_per_second_from, seconds_from
from quorate.launch.local.chaos import ChaosPlan
from quorate.launch.local.newcomers import Room
from quorate.launch.warm.request import RunRequest
from quorate.report.wording import counted


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What `quorate run` can be told."""

    script: str = argument("The training script.", "SCRIPT")
    arguments: list[str] = argument(ARGUMENTS, "[ARGS]...", default=[])
    workers: int | None = option("Worker processes (default: 1).", "-n")
    hosts: str | None = option(HOSTS, metavar="HOST:N,…")
    ssh: str | None = option(SSH, metavar="COMMAND")
    env: list[str] = option(ENV, "--env", default=[])
    silence: str | None = option(SILENCE)
    virtual: int | None = option("Virtual workers in this one process, instead of -n.")
    strategy: str | None = option("Overrides the script's own strategy; NAME, or NAME:key=value,…")
    settings: list[str] = option("A setting of the strategy, key=value; may be repeated.", "--set", default=[])
    name: str | None = option("Keep the records in runs/NAME.")
    resume: str | None = option(
        "Go on in the folder of a run, with its script and options by default.", metavar="RUN", eager=read_resumed
    )
    is_module: bool = option("SCRIPT is a module, as after python -m.", "-m", "--module", default=False)
    seed: int | None = option("Of everything drawn: data order, generators, imbalance.")
    imbalance: str | None = option(IMBALANCE)
    attack: str | None = option("What the last workers send in place of gradients: sign-flip:2, noise, nan ...")
    pace: str | None = option(PACE)
    share: str | None = option("How data is cut, instead of the script's: static, dynamic.")
    mesh: str | None = option(
        "Replicas of the model, each in shards, layers computed together: replicas=R,shards=S,tensor=T."
    )
    zero: int | None = option("Stage of ZeRO for the shards: 1, 2, 3.")
    offload: str | None = option("What of a model in shards rests in host memory: optimizer, all, disk.")
    seconds: float | None = option("End the training after so many seconds.")
    failures: str | None = option("How workers fail, for --chaos: mtbf=30s,repair=2s,stop=0.2:3s,slow=0.1:x4:5s.")
    chaos: int | None = option(
        "Kill, stop and slow down workers on the schedule of this seed.", metavar="SEED", default=None
    )
    restart: int | None = option(
        "Start another worker in place of one that died, at most so many times (0; 64 with --chaos)."
    )
    room: int = option("How many more workers may come by `quorate join`.", default=0)
    servers: int = option("Ranks that only keep parameters for workers of parameter-server; 0: none.", default=0)
    cold: bool = option("Start every worker as a program, and fork none.", default=False)
    compute: str | None = option("Virtual time of a step: constant:10ms, normal:10ms:2ms, lognormal:10ms:0.5.")
    latency: float | None = option(LATENCY, reads=seconds_from)
    """Seconds."""
    bandwidth: float | None = option(BANDWIDTH, reads=bytes_per_second_from)
    """Bytes per second."""
    config: str | None = option(CONFIG, metavar="FILE", eager=read_config)
    log: str | None = option("Where numbers go beside the records: tensorboard,wandb,mlflow,csv,json or none.")
    no_progress: bool = option("Show no progress while it runs.", default=False)
    watch: bool = option("Serve a live page of the run to browsers on this machine.", default=False)
    print_config: bool = option("Show the options as TOML for --config, and start nothing.", default=False)
    dry_run: bool = option("Say what would start, and start nothing.", default=False)
    as_json: bool = option("With --dry-run: as one JSON object.", "--json", default=False)


FORKED = 3
"""Processes of a run, from which on one more that imports torch for them is worth its while."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What is to be started; all of it has been checked."""

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
        """The line that says what was chosen."""
        request, chosen = self.request, self.request.overrides
        kind = "worker" if request.virtual is None else "virtual worker"
        settings = ", ".join(f"{key}={value}" for key, value in chosen.settings.items())
        strategy = chosen.strategy or "the script's own"
        beside: dict[str, object] = {"imbalance": chosen.imbalance, "pace": chosen.pace, "share": chosen.share}
        beside |= {"mesh": chosen.mesh, "zero": chosen.zero, "offload": chosen.offload, "seed": chosen.seed}
        told = "".join(f", {name}: {value}" for name, value in beside.items() if value is not None)
        if self.chaos is not None:
            told += f", chaos of seed {self.chaos.seed}: {self.chaos.failures.text}"
        if self.room.all:
            told += f", room for {self.room.all} more"
        beside_them = f" and {counted(request.servers, 'server')}" if request.servers else ""
        threads = f", OMP_NUM_THREADS={self.omp_threads}" if request.virtual is None else ""
        where = "" if request.hosts is None else f" on {request.hosts.layout.in_words}"
        return (
            f"{counted(request.size, kind)}{beside_them}{where} of {request.script}, strategy: {strategy}"
            f"{f' ({settings})' if settings else ''}{told}{threads}; records in {request.folder}"
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """What `run.json` keeps of it."""
        return {**self.request.as_json(self.omp_threads), "restart": self.room.restarts, "room": self.room.more}
