"""Several learners: their lives where they wait for each other.

Learners without failures are all alike, and are counted, not simulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from quorate.simulation.failing.life import Lived
from quorate.simulation.failing.ways import Way


@dataclass
class Spent:
    """Worker-seconds of all learners by use; and seconds in which learners trained."""

    useful: float = 0.0
    lost: float = 0.0
    down: float = 0.0
    stopped: float = 0.0
    waiting: float = 0.0
    moving: float = 0.0
    saving: float = 0.0
    up: float = 0.0
    """Seconds in which the quorum trained."""

    @property
    def possible(self) -> float:
        """The sum of all uses."""
        return self.useful + self.lost + self.down + self.stopped + self.waiting + self.moving + self.saving


@dataclass(frozen=True, kw_only=True)
class Lives:
    """The learners with failures, and the workers of the others."""

    struck: Sequence[Lived]
    untouched: Sequence[int]
    seconds: float

    @property
    def learners(self) -> int:
        """The number of all learners."""
        return len(self.struck) + len(self.untouched)

    def by_themselves(self) -> Spent:
        """Return the use of time if no learner waits for another."""
        spent = Spent(useful=sum(self.untouched) * self.seconds)
        for lived in self.struck:
            spent.useful += lived.worked - lived.saving - lived.lost
            spent.lost += lived.lost
            spent.down += lived.down
            spent.stopped += lived.stopped
            spent.waiting += lived.waiting
            spent.saving += lived.saving
        return spent


def merging(lives: Lives, way: Way) -> Spent:
    """Simulate learners that do not wait for each other; up is the time in which a quorum trains."""
    spent = lives.by_themselves()
    needed = way.quorum(lives.learners) - len(lives.untouched)
    if needed <= 0:
        spent.up = lives.seconds
        return spent
    begins = np.array([era.begin for lived in lives.struck for era in lived.eras])
    ends = np.array([era.end for lived in lives.struck for era in lived.eras])
    times = np.concatenate([ends, begins])  # an end comes first, and counts no time between
    changes = np.concatenate([-np.ones(len(ends), int), np.ones(len(begins), int)])
    order = np.argsort(times, kind="stable")
    training = np.cumsum(changes[order])[:-1]
    spent.up = float(np.diff(times[order])[training >= needed].sum())
    return spent


def in_rounds(lives: Lives, way: Way, detect: float) -> Spent:
    """Simulate rounds at the speed of the slowest member of the quorum, among learners that are not known to be
    gone."""
    spent = lives.by_themselves()
    rates = {1.0: [len(lives.untouched), sum(lives.untouched)]}
    members, before = lives.learners, 0.0
    common, waiting = 1.0, 0.0
    quorums: dict[int, int] = {}

    def pause() -> None:
        nonlocal common, waiting
        if members not in quorums:
            quorums[members] = way.quorum(members) if members else 1
        needed, common = quorums[members], 0.0
        for rate in sorted(rates, reverse=True):
            needed -= rates[rate][0]
            if needed <= 0:
                common = rate
                break
        waiting = sum(live * max(0.0, rate - common) for rate, (_, live) in rates.items())

    events = sorted(event for lived in lives.struck for event in _changes(lived, lives.seconds, detect))
    pause()
    for time, training, rate, live, member in events:
        if time > before:
            spent.up += (time - before) * (common > 0)
            spent.useful -= (time - before) * waiting
            spent.waiting += (time - before) * waiting
            before = time
        members += member
        if training:
            count = rates.setdefault(rate, [0, 0])
            count[0] += training
            count[1] += training * live
        pause()
    spent.up += (lives.seconds - before) * (common > 0)
    spent.useful -= (lives.seconds - before) * waiting
    spent.waiting += (lives.seconds - before) * waiting
    if spent.useful < 0:  # incomplete steps that are lost were spent waiting
        spent.waiting, spent.useful = spent.waiting + spent.useful, 0.0
    return spent


def _changes(lived: Lived, seconds: float, detect: float) -> Iterator[tuple[float, int, float, int, int]]:
    """Yield time, whether training begins (1) or ends (-1), speed, workers, and a change of members."""
    at = 0.0
    for era in lived.eras:
        if era.begin > at + detect:
            yield at + detect, 0, 0.0, 0, -1
            yield era.begin, 0, 0.0, 0, 1
        yield era.begin, 1, era.rate, era.live, 0
        yield era.end, -1, era.rate, era.live, 0
        at = era.end
    if seconds > at + detect:
        yield at + detect, 0, 0.0, 0, -1


@dataclass
class _Attempt:
    """The work of one learner from one meeting to the next."""

    arrival: float
    """Infinite: it does not arrive before the end."""
    lost_at: float = math.inf
    """When it was first dead before arriving; minus infinity: it was dead when the others went on."""
    kept: float = 0.0
    dropped: float = 0.0
    """Worker-seconds; `kept` arrive at the meeting."""
    kept_before: float = 0.0
    """Its work when it was first gone."""
    times: list[tuple[float, float]] = field(default_factory=list)


def _attempt(lived: Lived, place: int, begin: float, work: float) -> _Attempt:
    attempt, done = _Attempt(math.inf), 0.0
    if place and lived.eras[place - 1].dropped == math.inf:  # it was gone, and may be still
        later = place == len(lived.eras) or lived.eras[place].begin > begin
        attempt.lost_at = -math.inf if later else math.inf
    for number in range(place, len(lived.eras)):
        era = lived.eras[number]
        since = max(begin, era.begin)
        took = (era.end - since) * era.rate
        if done + took >= work:
            attempt.arrival = since + (work - done) / era.rate
            attempt.kept += (work - done) * era.live
            attempt.times.append((since, attempt.arrival))
            return attempt
        done += took
        attempt.kept += took * era.live
        attempt.times.append((since, era.end))
        is_gone = era.dropped == math.inf
        again = min(done, era.dropped)
        chips = attempt.kept if is_gone else min(attempt.kept, again * era.live)
        if is_gone and attempt.lost_at == math.inf:
            attempt.lost_at, attempt.kept_before = era.end, attempt.kept
        attempt.kept, attempt.dropped, done = attempt.kept - chips, attempt.dropped + chips, done - again
    return attempt


class _Paths:
    """The progress of each learner: those that train at full speed for a while, and the others."""

    def __init__(self, struck: Sequence[Lived]) -> None:
        self._struck = struck
        self.places = [0] * len(struck)
        """The current era, or the next one."""
        self.workers = 0
        """Workers of learners at full speed."""
        self.others = list(range(len(struck)))
        self._quiet: list[tuple[float, int]] = []
        """The end of full speed, and the learner."""

    def sorted_at(self, now: float) -> float:
        """Sort the learners, and return until when those at full speed continue."""
        self._leave(now)
        others, self.others = self.others, []
        for learner in others:
            place, eras = self.places[learner], self._struck[learner].eras
            while place < len(eras) and eras[place].end <= now:
                place += 1
            self.places[learner] = place
            if place < len(eras) and eras[place].begin <= now and eras[place].rate == 1.0:
                heappush(self._quiet, (eras[place].end, learner))
                self.workers += eras[place].live
            else:
                self.others.append(learner)
        return self._quiet[0][0] if self._quiet else math.inf

    def troubled(self, until: float) -> list[int]:
        """Return the learners that are not at full speed until then."""
        self._leave(until)
        return self.others

    def _leave(self, until: float) -> None:
        while self._quiet and self._quiet[0][0] <= until:
            _, learner = heappop(self._quiet)
            self.workers -= self._struck[learner].eras[self.places[learner]].live
            self.others.append(learner)


def in_meetings(lives: Lives, way: Way, work: float, exchange: float, detect: float) -> Spent:
    """Simulate meetings when each learner has done `work` seconds of it, each followed by an exchange.

    A learner that is dead before has lost its work. The others wait until it has done all of it again, or, where they
    go on, leave it out until the next meeting.
    """
    base, spent, now = lives.by_themselves(), Spent(), 0.0
    untouched, paths = sum(lives.untouched), _Paths(lives.struck)
    while now < lives.seconds:
        quiet_until = min(paths.sorted_at(now), lives.seconds)
        rounds = 0 if paths.others else int((quiet_until - now) // (work + exchange))
        if rounds:  # in which nothing happens
            spent.useful += rounds * work * (untouched + paths.workers)
            spent.up += rounds * work
            spent.moving += rounds * exchange
            now += rounds * (work + exchange)
            continue
        tried = [
            _attempt(lives.struck[learner], paths.places[learner], now, work) for learner in paths.troubled(now + work)
        ]
        alike = untouched + paths.workers
        ends = _meeting(tried, now + work if alike else 0.0, detect, goes_on=way.goes_on)
        ends = min(ends, lives.seconds)
        for attempt in tried:
            left_out = way.goes_on and attempt.lost_at < ends and attempt.arrival > ends
            spent.useful += 0.0 if left_out else attempt.kept
            spent.lost += attempt.kept_before if left_out else attempt.dropped
        spent.useful += min(work, ends - now) * alike
        alone = [(now, min(now + work, ends))] if alike else []
        spent.up += _covered([*alone, *(pair for attempt in tried for pair in attempt.times)], ends)
        spent.moving += min(exchange, lives.seconds - ends)
        now = ends + exchange
    worked = base.useful + base.lost
    spent.moving = min(
        spent.moving * worked / lives.seconds if lives.seconds else 0.0, worked - spent.useful - spent.lost
    )
    spent.down, spent.stopped = base.down, base.stopped
    spent.waiting = base.waiting + worked - spent.useful - spent.lost - spent.moving
    return spent


def _meeting(tried: Sequence[_Attempt], others: float, detect: float, *, goes_on: bool) -> float:
    """Return when they meet."""
    if not goes_on:
        return max([others, *(attempt.arrival for attempt in tried)])
    there = [attempt.arrival for attempt in tried if attempt.lost_at == math.inf]
    if not there and not others:
        return min((attempt.arrival for attempt in tried), default=math.inf)
    ends = max([others, *there])
    return max(
        [ends, *(min(attempt.lost_at + detect, attempt.arrival) for attempt in tried if attempt.lost_at < math.inf)]
    )


def _covered(times: Sequence[tuple[float, float]], until: float) -> float:
    """Return the seconds that at least one of these covers."""
    covered, at = 0.0, 0.0
    for begin, end in sorted(times):
        begin, end = max(begin, at), min(end, until)
        if end > begin:
            covered += end - begin
            at = end
    return covered
