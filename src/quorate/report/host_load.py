"""Other work on the hosts of a run, which makes all its times longer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quorate.records.host_rows import Load
from quorate.report.reading.run import RunRecords
from quorate.report.schema import HostLoad, Outcome

LEAST_CORES, LEAST_SHARE = 0.25, 0.1
"""Other work below this number of cores, or below this share of them, is what every system does beside a run."""
_AVERAGED_OVER = 60.0
"""The seconds of a load average: in a shorter run it is that of the time before."""


def load_of(run: RunRecords) -> HostLoad | None:
    """Return the load of the host with the most other work; None unless every worker there recorded it."""
    ranks_by_host: dict[object, list[Load | None]] = {}
    for rank in run.ranks:
        sound = [load for load in rank.loads if load.seconds > 0.0 and load.cores]
        ranks_by_host.setdefault(rank.start.get("host"), []).append(sound[-1] if sound else None)
    hosts = [
        _of_host(loads)
        for ranks in ranks_by_host.values()
        if len(loads := [load for load in ranks if load is not None]) == len(ranks)
    ]
    return max(hosts, key=lambda host: (host.is_busy, (host.other or 0.0) / host.cores), default=None)


def _of_host(loads: Sequence[Load]) -> HostLoad:
    longest = max(loads, key=lambda load: load.seconds)
    used = sum(load.cpu_seconds for load in loads) / longest.seconds
    other = None
    if longest.busy_seconds is not None:
        other = max(0.0, longest.busy_seconds / longest.seconds - used)
    elif longest.load_average is not None and longest.seconds >= _AVERAGED_OVER:
        other = max(0.0, longest.load_average - len(loads))
    least = max(LEAST_CORES, LEAST_SHARE * longest.cores)
    return HostLoad(
        cores=longest.cores,
        used=used,
        other=other,
        load_average=longest.load_average,
        pressure=longest.pressure,
        is_busy=other is not None and other >= least and other + len(loads) > longest.cores,
    )


def other_work_in_words(outcomes: Iterable[Outcome]) -> str | None:
    """Return `the machine was busy with other work (1.6 of 2 cores) in 2 of 9 runs`; None if it was not."""
    loads = [outcome.load for outcome in outcomes if outcome.status is not None or outcome.load is not None]
    busy = [load for load in loads if load is not None and load.is_busy]
    if not busy:
        return None
    most = max(busy, key=lambda load: (load.other or 0.0) / load.cores)
    runs = "" if len(loads) == 1 else f" in {len(busy)} of {len(loads)} runs"
    at_most = "at most " if len(busy) > 1 else ""
    return f"the machine was busy with other work ({at_most}{most.other:.1f} of {most.cores} cores){runs}"
