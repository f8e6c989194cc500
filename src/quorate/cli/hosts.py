"""`--hosts` of `quorate run`, with `--ssh` and `--env`."""

from __future__ import annotations

import shlex

from quorate.cli.options import given
from quorate.cli.plan import Hosts, RunOptions
from quorate.cli.ssh import ssh_here
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import seconds_from
from quorate.launch.hosts.layout import layout_from
from quorate.launch.hosts.ranks import check_env
from quorate.wire.replicated.limits import Limits


def hosts_of(options: RunOptions) -> Hosts | None:
    """None where all workers are here. Raises `ConfigurationError` for what cannot be."""
    if options.hosts is None:
        of_hosts = given(options, "ssh", "env", "silence")
        if of_hosts:
            raise ConfigurationError(f"{' and '.join(of_hosts)} can be given with --hosts only")
        return None
    layout = layout_from(options.hosts)
    if options.workers not in (None, layout.size):
        raise ConfigurationError(
            f"-n is {options.workers}, and --hosts {options.hosts} has {layout.size} workers; leave out -n"
        )
    excluded = given(options, "virtual", "chaos", "failures", "restart", "room")
    if excluded:
        raise ConfigurationError(f"{' and '.join(excluded)} cannot be given with --hosts")
    ssh = ssh_here(options.ssh)
    try:
        has_words = bool(shlex.split(ssh))
    except ValueError:
        has_words = False
    if not has_words:
        raise ConfigurationError(f"--ssh {ssh!r} is no command")
    check_env(options.env)
    env = list(options.env)
    if options.silence is not None:
        Limits(seconds_from(options.silence, f"--silence {options.silence}"))
        env.append(f"QUORATE_SILENCE={options.silence}")
    return Hosts(layout=layout, ssh=ssh, env=env)
