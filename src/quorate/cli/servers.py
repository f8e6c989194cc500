"""`--servers` of `quorate run`: ranks that are servers, and no workers."""

from __future__ import annotations

from collections.abc import Mapping

from quorate.cli.listing import registry
from quorate.cli.options import given
from quorate.cli.plan import RunOptions
from quorate.core.errors import ConfigurationError
from quorate.launch.local.newcomers import MOST


def settings_of_servers(
    options: RunOptions, strategy: str | None, settings: Mapping[str, object]
) -> Mapping[str, object]:
    """The settings of the strategy (None: the script's own) with those servers, if there are any.

    Raises `ConfigurationError` for a number that cannot be, and for what does not go with them.
    """
    count = options.servers
    if not count:
        return settings
    if not 0 < count <= MOST:
        raise ConfigurationError(f"--servers is {count}; it is a number of servers from 1 to {MOST}")
    excluded = given(options, "chaos", "failures", "restart", "room")
    if excluded:
        raise ConfigurationError(f"{' and '.join(excluded)} cannot be given with --servers")
    if settings.get("servers", "own") != "own":
        raise ConfigurationError(f"--servers {count} starts servers that are no workers; leave out the setting servers")
    if strategy is not None and not _has_servers(strategy):
        raise ConfigurationError(f"{strategy} has no servers; --servers goes with parameter-server and its presets")
    return {**settings, "servers": "own"}


def _has_servers(strategy: str) -> bool:
    strategies = registry("strategies")
    if strategy not in strategies:
        return strategy not in registry("baselines")  # what nobody knows is told elsewhere
    from quorate.strategies.parts.server_settings import ServerSettings

    return issubclass(strategies.get(strategy), ServerSettings)
