"""Where workers are: processes here or on several hosts, or virtual workers, and who of them is late."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from quorate.cli import options as shared
from quorate.cli.options import flags_given, option
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import bytes_per_second_from, seconds_from
from quorate.launch.hosts.reach import Hosts, layout_from
from quorate.wire.replicated.limits import Limits


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of verbs that start workers; an option that a verb declares again keeps its place."""

    workers: int | None = option("Number of worker processes (default: 1).", "-n", "--workers", metavar=shared.N)
    hosts: str | None = option(shared.HOSTS, metavar="HOST:N,…")
    ssh: str | None = option(shared.SSH, metavar="COMMAND")
    env: list[str] = option(shared.ENV, "--env", default=[], metavar="NAME[=VALUE]")
    silence: str | None = option(shared.SILENCE, metavar=shared.TIME)
    virtual: int | None = option("Number of virtual workers; in place of -n.", metavar=shared.N)
    compute: str | None = option(shared.COMPUTE, metavar=shared.TIME, needs="--virtual N")
    latency: float | None = option(shared.LATENCY, reads=seconds_from, metavar=shared.TIME, needs="--virtual N")
    """Seconds."""
    bandwidth: float | None = option(
        shared.BANDWIDTH, reads=bytes_per_second_from, metavar=shared.RATE, needs="--virtual N"
    )
    """Bytes per second."""
    imbalance: str | None = option(shared.IMBALANCE, metavar=shared.DELAYS)
    pace: str | None = option(shared.PACE, metavar=shared.TIME)


def hosts_of(options: Any) -> Hosts | None:
    """Return the hosts of `--hosts`, or None. Raises `ConfigurationError` for wrong options."""
    text: str | None = options.hosts
    if text is None:
        of_hosts = flags_given(options, "ssh", "env", "silence")
        if of_hosts:
            raise ConfigurationError(f"{' and '.join(of_hosts)} can be given with --hosts only")
        return None
    size = layout_from(text).size
    if options.workers not in (None, size):
        raise ConfigurationError(f"-n is {options.workers}, and --hosts {text} has {size} workers; leave out -n")
    excluded = flags_given(options, "virtual", "chaos", "failures", "restart", "spare", "servers")
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
