"""The places of workers: processes here or on several hosts, or virtual workers, and who of them is late."""

from __future__ import annotations

import os
from dataclasses import dataclass

from quorate.cli import options as shared
from quorate.cli.options import argument, flags_given, option
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import bytes_per_second_from, seconds_from
from quorate.launch.hosts.reach import Hosts, layout_from
from quorate.wire.replicated.limits import Limits


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of verbs that start workers; an option that a verb declares again keeps its place."""

    workers: int | None = option("Number of worker processes (default: 1).", "-n", "--workers", metavar=shared.N)
    hosts: str | None = option("Workers on several hosts, reached over ssh; in place of -n.", metavar="HOST:N,…")
    ssh: str | None = option(
        "The command that reaches a host, with its options (default: ssh).", metavar="COMMAND", needs="--hosts"
    )
    env: list[str] = option(
        "A variable for the workers on all hosts; may be repeated.",
        "--env",
        default=[],
        metavar="NAME[=VALUE]",
        needs="--hosts",
    )
    silence: str | None = option(
        "How long a host may be silent before its workers count as dead (default: 5s).",
        metavar=shared.TIME,
        needs="--hosts",
    )
    virtual: int | None = option("Number of virtual workers; in place of -n.", metavar=shared.N)
    compute: str | None = option(
        "Virtual time of a step: constant:10ms, normal:10ms:2ms, lognormal:10ms:0.5.",
        metavar=shared.TIME,
        needs="--virtual N",
    )
    latency: float | None = option(
        "Latency of the virtual network, such as 50us.", reads=seconds_from, metavar=shared.TIME, needs="--virtual N"
    )
    """Seconds."""
    bandwidth: float | None = option(
        "Its bandwidth, such as 10Gbit.", reads=bytes_per_second_from, metavar=shared.RATE, needs="--virtual N"
    )
    """Bytes per second."""
    imbalance: str | None = option(
        "Make workers late: one-of:200ms, rank:3:x2, lognormal:10ms:0.5, trace:FILE.", metavar=shared.DELAYS
    )
    pace: str | None = option(
        "The shortest time a step may take: 280ms, 50us/token.", "--min-step-time", metavar=shared.TIME
    )


@dataclass(frozen=True, kw_only=True)
class ScriptOptions(WorkerOptions):
    """The options of verbs that run a script."""

    script: str = argument("The training script.", "SCRIPT")
    arguments: list[str] = argument(shared.ARGUMENTS, "[ARGS]...", default=[])
    strategy: str | None = option("Replace the script's strategy: NAME or NAME:key=value,…", metavar="STRATEGY")
    settings: list[str] = option(shared.SETTING, "--set", default=[], metavar=shared.PAIR)
    name: str | None = option("Keep the records in runs/NAME.", metavar="NAME")
    is_module: bool = option("SCRIPT is a module, as after python -m.", "-m", "--module", default=False)
    seed: int | None = option("The seed of data order, random generators and delays.", metavar=shared.N)


def hosts_of(options: WorkerOptions) -> Hosts | None:
    """Return the hosts of `--hosts`, or None. Raises `ConfigurationError` for wrong options."""
    text: str | None = options.hosts
    if text is None:
        return None
    size = layout_from(text).size
    if options.workers not in (None, size):
        raise ConfigurationError(f"-n is {options.workers}, and --hosts {text} has {size} workers; leave out -n")
    excluded = flags_given(options, "virtual", "chaos", "failures", "restart", "max_joins", "servers")
    if excluded:
        raise ConfigurationError(f"{' and '.join(excluded)} cannot be given with --hosts")
    env = list(options.env)
    if options.silence is not None:
        Limits(seconds_from(options.silence, f"--silence {options.silence}"))
        env.append(f"QUORATE_SILENCE={options.silence}")
    return Hosts(text=text, ssh=ssh_here(options.ssh), env=env)


def ssh_here(command: str | None = None) -> str:
    """Return the command in place of ssh: `command`, else `QUORATE_SSH`, else ssh."""
    return command or os.environ.get("QUORATE_SSH", "").strip() or "ssh"
