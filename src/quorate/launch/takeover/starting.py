"""Whether a script that is about to run is to be trained under a strategy, by the environment that launchers pass."""

from __future__ import annotations

from quorate.core.errors import ConfigurationError
from quorate.launch.run.overrides import asked_strategy, overrides_here


def take_over_if_asked() -> None:
    """Let the script that this process is about to run train under the strategy that was asked for, if any was.

    It imports torch then.
    """
    try:
        chosen = overrides_here()
    except ConfigurationError:
        return  # quorate.join() says it
    if asked_strategy(chosen) is not None:
        from quorate.launch.takeover.replacing import take_over

        take_over(chosen)
