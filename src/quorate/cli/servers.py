"""The option `--servers` of `quorate run`: ranks that are servers, and no workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.cli.listing import registry
from quorate.cli.options import flags_given
from quorate.cli.plan import RunOptions
from quorate.core.errors import ConfigurationError
from quorate.launch.local.newcomers import MOST
from quorate.train.compatibility import UNCONCERNED, Combination, check


def settings_of_servers(
    options: RunOptions, strategy: str | None, settings: Mapping[str, object]
) -> Mapping[str, object]:
    """Return the settings of the strategy (None: the script's own), with the servers if there are any.

    Raises `ConfigurationError` for a number that cannot be, and for what does not go with them.
    """
    count = options.servers
    if not count:
        return settings
    if not 0 < count <= MOST:
        raise ConfigurationError(f"--servers is {count}; it must be a number of servers from 1 to {MOST}")
    excluded = flags_given(options, "chaos", "failures", "restart", "spare")
    if excluded:
        raise ConfigurationError(f"{' and '.join(excluded)} cannot be given with --servers")
    if settings.get("servers", "own") != "own":
        raise ConfigurationError(f"--servers {count} starts separate servers; leave out the setting servers")
    strategies, baselines = registry("strategies"), registry("baselines")
    if strategy is not None and (strategy in strategies or strategy in baselines):  # others are refused elsewhere
        kind: Any = strategies.get(strategy) if strategy in strategies else UNCONCERNED
        check(Combination(label=strategy, strategy=kind, has_own_servers=True), "servers")
    return {**settings, "servers": "own"}
