"""`--hosts`, with `--ssh`, `--env` and `--silence`, of the verbs that have them."""

from __future__ import annotations

import os
from typing import Any

from quorate.cli.options import flags_given
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import seconds_from
from quorate.launch.hosts.reach import Hosts, layout_from
from quorate.wire.replicated.limits import Limits


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
