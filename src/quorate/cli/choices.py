"""Checks of a command line: strategy, imbalance, pace and data; they import torch only for settings of a strategy."""

from __future__ import annotations

import resource
from collections.abc import Mapping

from quorate.cli.listing import registry
from quorate.cli.names import unknown_name
from quorate.core.axes import axes_from_text, offload_of, stage_of
from quorate.core.errors import ConfigurationError, unknown
from quorate.core.resources import available_memory
from quorate.core.telling import tell
from quorate.gossip.topology import topology_of
from quorate.launch.run.overrides import MOST_SEED, SHARES, Overrides
from quorate.launch.warm.request import VirtualRun
from quorate.report.wording import bytes_in_words, counted
from quorate.train.combination import Combination
from quorate.train.compatibility import check

WORKER_BYTES = 400 * 2**20
"""Resident memory of a worker with torch imported and a small model."""
MOST_PROCESSES = 4096
MOST_VIRTUAL = 100_000
FILES, FILES_PER_WORKER = 64, 16
"""Open files that are enough for the launcher, and for each worker that it starts or that another one knows."""
LEAST_FILES, LEAST_PER_WORKER = 24, 4
"""The fewest with which a run of small models has ended: of the launcher, and for each worker."""
_COUNTS = ("wait_for", "learners", "servers")
"""Settings of strategies that, as whole numbers, count workers."""


def check_workers(workers: int | None, virtual: int | None) -> None:
    """Raise `ConfigurationError` for fewer workers than one, and for more than one machine can hold."""
    for option, count, most in (("-n", workers, MOST_PROCESSES), ("--virtual", virtual, MOST_VIRTUAL)):
        if count is not None and count < 1:
            raise ConfigurationError(f"{option} {count}: a run needs at least one worker")
        if count is not None and count > most:
            raise ConfigurationError(f"{option} {count}: a run on one machine can have at most {most} such workers")


def tell_lack_of_memory(workers: int) -> None:
    """Say on stderr if the memory of this machine is not enough for so many workers with small models."""
    free, _ = available_memory()
    most = free // WORKER_BYTES
    if workers > most:
        needed = bytes_in_words(workers * WORKER_BYTES)
        tell(
            f"quorate: {counted(workers, 'worker')} with small models need some {needed}, "
            f"and {bytes_in_words(free)} are available: enough for some {most}; --virtual needs much less\n"
        )


def files_needed(workers: int) -> int:
    """Return the number of open files that is enough for each process of a run."""
    return FILES + FILES_PER_WORKER * workers


def check_open_files(workers: int) -> None:
    """Raise `ConfigurationError` where processes may have so few open files that workers cannot meet."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < LEAST_FILES + LEAST_PER_WORKER * workers:
        needed = files_needed(workers)
        raise ConfigurationError(
            f"a process may have {limit} open files here, and {counted(workers, 'worker')} need up to {needed}; "
            f"raise the limit: ulimit -n {needed}"
        )


def check_seed(flag: str, seed: int | None) -> None:
    """Raise `ConfigurationError` for a seed that generators do not take."""
    if seed is not None and not 0 <= seed <= MOST_SEED:
        raise ConfigurationError(f"{flag} {seed}: a seed is a whole number from 0 to {MOST_SEED}")


def check_overrides(chosen: Overrides, size: int, *, is_virtual: bool) -> None:
    """Raise `ConfigurationError` for the first override that is wrong."""
    check_strategy(chosen.strategy, chosen.settings, size, is_virtual=is_virtual)
    check_seed("--seed", chosen.seed)
    if chosen.share is not None and chosen.share not in SHARES:
        raise unknown("share", chosen.share, SHARES)
    if any(option is not None for option in (chosen.mesh, chosen.zero, chosen.offload)):
        stage_of(1 if chosen.zero is None else chosen.zero)
        offload_of(chosen.offload)
        is_baseline = chosen.strategy in registry("baselines")
        label = chosen.strategy or ""
        check(Combination(label=label, is_virtual=is_virtual, is_baseline=is_baseline, asks_for_pieces=True))
        if chosen.mesh is not None:
            axes_from_text(chosen.mesh, size)
    for flag, seconds in (("--seconds", chosen.seconds), ("--leave-within", chosen.leave_within)):
        if seconds is not None and not 0 < seconds < float("inf"):
            raise ConfigurationError(f"{flag} {seconds:g}: the time must be above 0")
    if chosen.leave_within is not None and is_virtual:
        raise ConfigurationError("--leave-within is for processes (-n); virtual workers leave at once")
    if chosen.imbalance is not None:
        from quorate.inject.imbalance import parse_imbalance

        parse_imbalance(chosen.imbalance, seed=0, size=size)
    if chosen.pace is not None:
        from quorate.inject.pace import parse_pace

        parse_pace(chosen.pace, seed=0, size=size)


def check_virtual(chosen: VirtualRun | None) -> None:
    """Raise `ConfigurationError` for times of work and for a network that cannot be."""
    if chosen is not None:
        chosen.compute_model()
        chosen.network()


def check_strategy(name: str | None, settings: Mapping[str, object], size: int, *, is_virtual: bool) -> None:
    """Raise `ConfigurationError` for an unknown name, and for settings that are wrong, or impossible among `size`.

    Other settings than counts of workers import the strategy (seconds). Without a name only these counts are checked.
    """
    if name is None:
        _check_counts(settings, size)
        return
    strategies, baselines = registry("strategies"), registry("baselines")
    if name in baselines:
        if settings:
            raise ConfigurationError(f"the baseline {name} has no settings; leave out {', '.join(sorted(settings))}")
        check(Combination(label=name, is_baseline=True, is_virtual=is_virtual))
        return
    if name not in strategies:
        raise unknown_name("strategy", name, (*strategies, *baselines), "strategies")
    if settings:
        source = strategies.source(name)
        names = {setting.name for setting in source.settings} if source is not None else set()
        _check_counts({key: value for key, value in settings.items() if key in names}, size)
        from quorate.train.reduced import with_reduction

        strategy, reduction = with_reduction(strategies.get(name), settings, name)
        if strategy.redundancy is not None:
            strategy.redundancy(size)
        elif strategy.meets == "all" and reduction.rule is not None and reduction.is_bound:
            reduction.rule.check(size)


def _check_counts(settings: Mapping[str, object], size: int) -> None:
    for name in _COUNTS:
        count = settings.get(name)
        if type(count) is int and not 1 <= count <= size:
            there = f"there {'is' if size == 1 else 'are'} {counted(size, 'worker')}"
            raise ConfigurationError(f"{name} is {count}, and {there}; a count is from 1 to {size}")
    topology = settings.get("topology")
    if isinstance(topology, str) and topology.partition(":")[0] in registry("topologies"):
        topology_of(topology, size)
