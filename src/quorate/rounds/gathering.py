"""A round that is being formed: its contributions, and how long each worker is waited for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from quorate.core.vectors import Flat, Layout, add_into
from quorate.rounds.buffer import Contribution
from quorate.rounds.calls import Calls
from quorate.rounds.combining import Combined, combined
from quorate.rounds.forming import Forming
from quorate.rounds.log import Log, Round
from quorate.rounds.terms import Agreed


@dataclass
class OpenRound:
    """A round that is being formed."""

    number: int
    since: float
    is_pause: bool
    until: dict[int, float]
    spans: bool = False
    contributions: dict[int, Contribution] = field(default_factory=dict)
    is_extended: bool = False
    forming: Forming | None = None

    def __post_init__(self) -> None:
        self.earliest = min(self.until.values(), default=math.inf)  # nobody is silent before; waits become only longer

    def is_here(self, rank: int, number: int, until: float) -> None:
        """Wait for `rank` until then, as its vector for round `number` is on its way."""
        if self.number == number and rank in self.until:
            self.until[rank] = until

    def extend(self, until: float) -> None:
        """Wait for everyone until then at least; once."""
        self.is_extended = True
        self.until = {rank: max(at, until) for rank, at in self.until.items()}

    @property
    def looks_at(self) -> float:
        """When the next worker may count as silent."""
        return min([at for rank, at in self.until.items() if rank not in self.contributions], default=math.inf)

    def silent(self, now: float, *, but: int) -> list[int]:
        """Return the workers that have not answered in time; they are not waited for any more."""
        answered = {*self.contributions, but}
        silent = [rank for rank, at in self.until.items() if rank not in answered and now >= at]
        self.until = {rank: at for rank, at in self.until.items() if rank not in silent}
        return silent


def furthest(contributions: Iterable[Contribution], step: float, options: Any) -> tuple[float, Any]:
    """Return the step and the options of the contributor furthest in the training, if beyond `step`."""
    giving = [contribution for contribution in contributions if contribution.stalenesses]
    best = max(giving, key=attrgetter("step"), default=None)
    return (step, options) if best is None or best.step < step else (best.step, best.options)


Add = Callable[[Sequence[Flat]], Flat | None]
"""Returns the sum of vectors in order; one vector is its own sum, none is None."""


def sum_of(vectors: Sequence[Flat], blank: Callable[[Layout], Flat] | None = None) -> Flat | None:
    """Return the sum in order, in memory of `blank` (None: ordinary); one vector is its own sum, none is None."""
    if len(vectors) < 2:
        return vectors[0] if vectors else None
    first, second, *rest = vectors
    total = first + second if blank is None else add_into(first, second, blank(first.layout))
    for vector in rest:
        total.add_(vector)
    return total


def sum_by_hosts(
    hosts: Iterable[Iterable[int]], contributions: Mapping[int, Contribution], add: Add = sum_of
) -> Flat | None:
    """Return the sum as several hosts form it: of each host in order, then of the hosts in order."""
    sums = [
        total
        for host in hosts
        if (total := add([vector for rank in host if (vector := contributions[rank].vector) is not None])) is not None
    ]
    return sums[0] if len(sums) == 1 else add(sums)


def round_of(
    gathering: OpenRound,
    contributions: Mapping[int, Contribution],
    result: Combined,
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
    """Return the round of `result` and of `contributions`, by rank."""
    best_step, best_options = furthest(contributions.values(), log.step, log.options)
    contributors = {rank: sent.stalenesses for rank, sent in contributions.items() if sent.stalenesses}
    inside, counted = len(calls.inside), 0 if gathering.is_pause else calls.counted_at(now)
    live = inside if gathering.is_pause else max(1, counted, len(contributors))
    weight = sum([sent.weight for sent in contributions.values()])
    if calls.agreed.batch:  # others compute again what is lost
        steps = weight / calls.agreed.batch
    else:
        steps = sum([sent.used_up for sent in contributions.values()]) / max(1, inside)
    return Round(
        number=gathering.number,
        term=term,
        sum=result.vector,
        weight=weight,
        live=live,
        alive=live if gathering.is_pause else max(live, counted + calls.ended),
        options=best_options,
        step=best_step,
        progress=log.progress + steps,
        contributors=contributors,
        is_pause=gathering.is_pause,
        saves=saves,
        is_last=gathering.is_pause and calls.all_ended,
        quorum=calls.quorum,
        joined=(*log.joined, *entering),
        era=gathering.number if gathering.is_pause else log.era,
        measures={rank: sent.measures for rank, sent in contributions.items() if sent.measures},
        times={rank: sent.times for rank, sent in contributions.items()},
        window=calls.window.used,
        voters=voters,
        hosts=[] if result.vector is None else hosts,
        excluded=[list(exclusion) for exclusion in result.excluded],
        missing=[rank for rank in calls.missing_at(now, is_pause=gathering.is_pause) if rank not in entering],
        **answered,
    )


def total_of(
    agreed: Agreed,
    number: int,
    hosts: Iterable[Iterable[int]],
    contributions: Mapping[int, Contribution],
    add: Add = sum_of,
) -> Combined:
    """Return the total of the vectors: their sum, host by host, or the agreed aggregation."""
    if agreed.combine is None:
        return Combined(sum_by_hosts(hosts, contributions, add))
    return combined(agreed.combine, {rank: (sent.vector, sent.weight) for rank, sent in contributions.items()}, number)


class Asking:
    """Questions to workers that a round waits for; one that was heard of counts as there for `grace` seconds."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self.until: dict[int, float] = {}
        """By rank, when its answer is due, then when it is asked again."""
        self._is_there: set[int] = set()

    def heard(self, rank: int, now: float) -> None:
        """Note that something came from `rank`, one of `until`."""
        if rank not in self._is_there:
            self._is_there.add(rank)
            self.until[rank] = now + self._grace

    def forget(self, rank: int) -> None:
        """Do not wait for `rank` any more."""
        self.until.pop(rank, None)

    def due(self, held: set[int], now: float) -> tuple[list[int], list[int]]:
        """Return, of the workers waited for (`held`), those that have not answered, and those to ask (again)."""
        if not held and not self.until:
            return [], []
        for rank in self.until.keys() - held:
            del self.until[rank]
        for rank in held - self.until.keys():
            self._is_there.add(rank)
            self.until[rank] = now + self._grace
        due = [rank for rank in sorted(held) if self.until[rank] <= now]
        if not due:
            return [], []
        return [rank for rank in due if rank not in self._is_there], [rank for rank in due if rank in self._is_there]

    def asked(self, rank: int, until: float) -> None:
        """Note that `rank` was asked, and has to answer until then."""
        self._is_there.discard(rank)
        self.until[rank] = until

    @property
    def looks_at(self) -> float:
        """When the next answer or question is due."""
        return min(self.until.values(), default=math.inf)


_THIN, _MOST_THIN = 1e7, 2.0
"""Bytes a second that links between hosts may fall to without silence, when others use them too, and for how many
seconds at most."""
_SLOWEST = 1e5
_REMEMBERED, _MANY = 8, 16


class Carrying:
    """The time that a vector is on its way, as one worker has measured it: that is no silence."""

    def __init__(self, agreed: Agreed) -> None:
        self._agreed = agreed
        self._took = deque[float](maxlen=_REMEMBERED)

    def took(self, seconds: float) -> None:
        """Note that a vector has arrived."""
        self._took.append(seconds)

    @property
    def between_hosts(self) -> float:
        """The seconds that a vector may take over links that may have become slower."""
        return max(self.seconds, min(self._agreed.vector_bytes / _THIN, _MOST_THIN) if self._agreed.is_large else 0.0)

    @property
    def latest(self) -> float:
        """The seconds that the newest took; 0 where none is known."""
        return self._took[-1] if self._took else 0.0

    @property
    def seconds(self) -> float:
        """The seconds that one more may take: four times the longest of late; a slow link's while none is known."""
        agreed = self._agreed
        if not agreed.is_large:
            return 0.0
        return 4 * max(self._took) if self._took else agreed.size * agreed.vector_bytes / _SLOWEST


class Patience:
    """The patience of a member with its leader: links may be slow, and leaders may bring no round."""

    def __init__(self, agreed: Agreed) -> None:
        self._agreed = agreed
        self._carrying = Carrying(agreed)
        self._asked, self._asked_at, self._spans = 0, 0.0, False
        self._barren, self._was_led = 0, False  # leaders since the newest round but the first; whether there was one

    def asked(self, number: int, now: float, *, spans: bool = False) -> None:
        """Note that the leader asks for round `number`, which `spans` hosts."""
        self._asked, self._asked_at, self._spans = number, now, spans

    def got(self, number: int, now: float) -> None:
        """Note that the result of round `number` is here."""
        if number == self._asked:
            self._carrying.took(now - self._asked_at)

    def new_round(self) -> None:
        """Note that a round has come."""
        self._barren, self._was_led = 0, False

    def new_leader(self) -> None:
        """Note that another worker leads, or tries to."""
        self._barren += self._was_led
        self._was_led = True

    @property
    def seconds(self) -> float:
        """Seconds without a message of the leader after which it is asked whether it is there, and then replaced. Twice
        as long with each leader that brought no round: candidates must not chase each other. Longer for more than
        `_MANY` workers: the leader answers all of them one after the other."""
        carrying = self._carrying.between_hosts if self._spans else self._carrying.seconds
        grace = self._agreed.grace * max(1.0, self._agreed.size / _MANY)
        seconds = (grace + carrying) * 2.0 ** min(self._barren, 8)
        return min(seconds, max(self._agreed.patience, self._agreed.grace))
