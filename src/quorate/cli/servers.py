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
        raise ConfigurationError(f"--servers is {count}; it must be a number of servers from 1 to {MOST}")
    excluded = given(options, "chaos", "failures", "restart", "spare")
    if excluded:
        raise ConfigurationError(f"{' and '.join(excluded)} cannot be given with --servers")
    if settings.get("servers", "own") != "own":
        raise ConfigurationError(f"--servers {count} starts separate servers; leave out the setting servers")
    why = None if strategy is None else _why_not(strategy)
    if why is not None:
        raise ConfigurationError(f"{why}; --servers needs parameter-server or one of its presets")
    return {**settings, "servers": "own"}


def _why_not(strategy: str) -> str | None:
    strategies = registry("strategies")
    if strategy not in strategies and strategy not in registry("baselines"):
        return None  # what nobody knows is told elsewhere
    from quorate.strategies.parts.placement import why_none_of_their_own

    return why_none_of_their_own(strategies.get(strategy) if strategy in strategies else None, strategy)
