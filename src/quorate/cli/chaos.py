"""`--failures` and `--chaos` of `quorate run`: what is to strike the workers, and how many may be started anew."""

from __future__ import annotations

from quorate.cli.listing import registry
from quorate.cli.plan import RunOptions
from quorate.core.errors import ConfigurationError
from quorate.inject.failures import failures_from
from quorate.launch.local.chaos import ChaosPlan
from quorate.launch.local.newcomers import MOST, Room
from quorate.launch.run.overrides import MOST_SEED

USUAL = "mtbf=60s,repair=2s,stop=0.2:3s,slow=0.2:x4:5s"
"""The failures for `--chaos` without `--failures`."""


def chaos_of(options: RunOptions, strategy: str | None) -> ChaosPlan | None:
    """Return the plan of `--chaos`, or None. Raises `ConfigurationError` for wrong options."""
    if options.chaos is None and options.failures is None:
        return None
    if options.chaos is None:
        raise ConfigurationError("--failures needs a seed; give --chaos SEED as well")
    if options.virtual is not None:
        raise ConfigurationError("--chaos kills processes (-n); it cannot be given with --virtual")
    if not 0 <= options.chaos <= MOST_SEED:
        raise ConfigurationError(f"--chaos {options.chaos}: a seed is a whole number from 0 to {MOST_SEED}")
    if strategy in registry("baselines"):
        raise ConfigurationError(
            f"the baseline {strategy} cannot continue after the death of a worker; choose another strategy for --chaos"
        )
    return ChaosPlan(failures_from(options.failures or USUAL), options.chaos)


def room_of(options: RunOptions) -> Room:
    """Return how many workers may join; with `--chaos` all dead workers are replaced by default."""
    usual = 0 if options.chaos is None else MOST
    return Room(usual if options.restart is None else options.restart, options.spare)
