"""The choices of a launcher that are in force before a script runs: a strategy for a script that is written for DDP."""

from __future__ import annotations

import os
from collections.abc import Mapping

from quorate.core.errors import ConfigurationError
from quorate.launch.run.overrides import Overrides, asked_strategy, overrides_here
from quorate.launch.takeover.other_processes import refuse_groups_of_children
from quorate.launch.takeover.torch_import import after_import_of_torch
from quorate.launch.worker.other_launchers import launched_rank

_MEETS_WITHIN = 60.0
"""Seconds."""


def take_over_if_asked() -> None:
    """Let the script that this process is about to run train under the strategy that was asked for, if any was.

    It happens as soon as the script has imported torch, whose threads it may choose before. Under any of several
    workers, processes that the script starts by hand make no group.
    """
    try:
        chosen = overrides_here()
    except ConfigurationError:
        return  # quorate.join() says it
    if asked_strategy(chosen) is None:
        if os.environ.get("WORLD_SIZE", "1") != "1":
            refuse_groups_of_children()
        return
    after_import_of_torch(lambda: _take_over(chosen))


def _take_over(chosen: Overrides) -> None:
    from quorate.launch.takeover.replacing import take_over

    take_over(chosen)
    if chosen.printed_metric is not None and os.environ.get("RANK") == "0":
        from quorate.launch.takeover.printed import log_printed

        log_printed(chosen.printed_metric)


def choose(strategy: str, settings: Mapping[str, object]) -> None:
    """Ask for a strategy in this process, as a launcher does."""
    os.environ.update(Overrides(strategy=strategy, settings=settings).environment())


def take_variables_of_torchrun() -> None:
    """Set the variables that torchrun sets, which scripts for DDP read, where srun or mpirun started this process."""
    if (launched := launched_rank()) is not None:
        os.environ.update(launched.environment_for_torch(os.environ, _MEETS_WITHIN))
