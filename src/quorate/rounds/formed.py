"""What a round's result says, of what was given to it; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from quorate.core.vectors import Flat, Layout
from quorate.rounds.calls import Calls
from quorate.rounds.combining import Combined, combined
from quorate.rounds.gathering import Contribution, OpenRound, furthest, sum_by_hosts
from quorate.rounds.log import Log, Round
from quorate.rounds.terms import Agreed


def round_of(
    gathering: OpenRound,
    given: Mapping[int, Contribution],
    found: Combined,
    *,
    term: int,
    log: Log,
    calls: Calls,
    now: float,
    entering: Sequence[int],
    saves: int,
    voters: list[int],
    hosts: list[list[int]],
    answered: Mapping[str, Any],
) -> Round:
    """The round of which that was `found`, of those that are in it, by rank, and of those that gave nothing."""
    best_step, best_options = furthest(given.values(), log.step, log.options)
    contributors = {rank: one.stalenesses for rank, one in given.items() if one.gives}
    live = calls.live if gathering.settles else max(1, calls.counted_at(now), len(contributors))
    return Round(
        number=gathering.number,
        term=term,
        sum=found.vector,
        weight=sum(one.weight for one in given.values()),
        live=live,
        alive=live if gathering.settles else max(live, calls.counted_at(now) + calls.ended),
        options=best_options,
        step=best_step,
        progress=log.progress + sum(one.used_up for one in given.values()) / max(1, calls.live),
        contributors=contributors,
        settles=gathering.settles,
        saves=saves,
        is_last=gathering.settles and calls.all_ended,
        quorum=calls.quorum,
        joined=(*log.joined, *entering),
        stretch=gathering.number if gathering.settles else log.stretch,
        measures={rank: one.measures for rank, one in given.items() if one.measures},
        times={rank: one.times for rank, one in given.items()},
        window=calls.window.used,
        voters=voters,
        hosts=[] if found.vector is None else hosts,
        excluded=[list(one) for one in found.excluded],
        missing=calls.missing_at(now, settles=gathering.settles),
        **answered,
    )


def total_of(
    agreed: Agreed,
    number: int,
    hosts: Iterable[Iterable[int]],
    given: Mapping[int, Contribution],
    blank: Callable[[Layout], Flat] | None = None,
) -> Combined:
    """What the vectors that were given become: their sum, host by host, or what was agreed in its place."""
    if agreed.combine is None:
        return Combined(sum_by_hosts(hosts, given, blank))
    return combined(agreed.combine, {rank: (one.vector, one.weight) for rank, one in given.items()}, number)
