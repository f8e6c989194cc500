"""Several learners: what becomes of the lives they live by themselves where they wait for each other.

Learners that nothing strikes are all alike, and are counted, not played.
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
    """Worker-seconds of all learners by what they were spent on; and seconds in which learners trained."""

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
        """All of it."""
        return self.useful + self.lost + self.down + self.stopped + self.waiting + self.moving + self.saving


@dataclass(frozen=True, kw_only=True)
class Lives:
    """The learners that something strikes, and the workers of the others."""

    struck: Sequence[Lived]
    untouched: Sequence[int]
    seconds: float

    @property
    def learners(self) -> int:
        """All of them."""
        return len(self.struck) + len(self.untouched)

    def by_themselves(self) -> Spent:
        """Where the time goes if nobody waits for anybody."""
        found = Spent(useful=sum(self.untouched) * self.seconds)
        for one in self.struck:
            found.useful += one.worked - one.saving - one.lost
            found.lost += one.lost
            found.down += one.down
            found.stopped += one.stopped
            found.waiting += one.waiting
            found.saving += one.saving
        return found


def merging(lives: Lives, way: Way) -> Spent:
    """Nobody waits for anybody; up is whenever as many learners train as make a round."""
    spent = lives.by_themselves()
    needed = way.quorum(lives.learners) - len(lives.untouched)
    if needed <= 0:
        spent.up = lives.seconds
        return spent
    begins = np.array([stretch.begin for one in lives.struck for stretch in one.stretches])
    ends = np.array([stretch.end for one in lives.struck for stretch in one.stretches])
    times = np.concatenate([ends, begins])  # an end comes first, and counts no time between
    changes = np.concatenate([-np.ones(len(ends), int), np.ones(len(begins), int)])
    order = np.argsort(times, kind="stable")
    training = np.cumsum(changes[order])[:-1]
    spent.up = float(np.diff(times[order])[training >= needed].sum())
    return spent


def in_rounds(lives: Lives, way: Way, detect: float) -> Spent:
    """Rounds go on at the speed of the last one that the quorum needs; of those that are not known to be gone."""
    spent = lives.by_themselves()
    rates = {1.0: [len(lives.untouched), sum(lives.untouched)]}
    members, before = lives.learners, 0.0
    common, waiting = 1.0, 0.0
    quorums: dict[int, int] = {}

    def settle() -> None:
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

    events = sorted(event for one in lives.struck for event in _changes(one, lives.seconds, detect))
    settle()
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
        settle()
    spent.up += (lives.seconds - before) * (common > 0)
    spent.useful -= (lives.seconds - before) * waiting
    spent.waiting += (lives.seconds - before) * waiting
    if spent.useful < 0:  # what is lost of steps that were begun was waited with
        spent.waiting, spent.useful = spent.waiting + spent.useful, 0.0
    return spent


def _changes(one: Lived, seconds: float, detect: float) -> Iterator[tuple[float, int, float, int, int]]:
    """Time, whether it begins (1) or ends (-1) to train, at what speed and with how many, and a change of members."""
    at = 0.0
    for stretch in one.stretches:
        if stretch.begin > at + detect:
            yield at + detect, 0, 0.0, 0, -1
            yield stretch.begin, 0, 0.0, 0, 1
        yield stretch.begin, 1, stretch.rate, stretch.live, 0
        yield stretch.end, -1, stretch.rate, stretch.live, 0
        at = stretch.end
    if seconds > at + detect:
        yield at + detect, 0, 0.0, 0, -1


@dataclass
class _Attempt:
    """What one learner does from one meeting to the next."""

    arrival: float
    """Infinite: it does not come before the end."""
    lost_at: float = math.inf
    """When it was first gone, on its way; before all times: it was not there when the others went on."""
    kept: float = 0.0
    dropped: float = 0.0
    """Worker-seconds; `kept` come to the meeting."""
    kept_before: float = 0.0
    """What it had done when it was first gone."""
    times: list[tuple[float, float]] = field(default_factory=list)


def _attempt(one: Lived, place: int, begin: float, work: float) -> _Attempt:
    found, done = _Attempt(math.inf), 0.0
    if place and one.stretches[place - 1].dropped == math.inf:  # it was gone, and may be still
        later = place == len(one.stretches) or one.stretches[place].begin > begin
        found.lost_at = -math.inf if later else math.inf
    for number in range(place, len(one.stretches)):
        stretch = one.stretches[number]
        since = max(begin, stretch.begin)
        took = (stretch.end - since) * stretch.rate
        if done + took >= work:
            found.arrival = since + (work - done) / stretch.rate
            found.kept += (work - done) * stretch.live
            found.times.append((since, found.arrival))
            return found
        done += took
        found.kept += took * stretch.live
        found.times.append((since, stretch.end))
        gone = stretch.dropped == math.inf
        again = min(done, stretch.dropped)
        chips = found.kept if gone else min(found.kept, again * stretch.live)
        if gone and found.lost_at == math.inf:
            found.lost_at, found.kept_before = stretch.end, found.kept
        found.kept, found.dropped, done = found.kept - chips, found.dropped + chips, done - again
    return found


class _Paths:
    """How far each learner is: those that train at full speed for a while, and the others."""

    def __init__(self, struck: Sequence[Lived]) -> None:
        self._struck = struck
        self.places = [0] * len(struck)
        """The stretch that is under way, or comes next."""
        self.workers = 0
        """Of those at full speed."""
        self.others = list(range(len(struck)))
        self._quiet: list[tuple[float, int]] = []
        """Until when, and which."""

    def sorted_at(self, now: float) -> float:
        """Sort them, and say until when nothing happens to those at full speed."""
        self._leave(now)
        others, self.others = self.others, []
        for one in others:
            place, stretches = self.places[one], self._struck[one].stretches
            while place < len(stretches) and stretches[place].end <= now:
                place += 1
            self.places[one] = place
            if place < len(stretches) and stretches[place].begin <= now and stretches[place].rate == 1.0:
                heappush(self._quiet, (stretches[place].end, one))
                self.workers += stretches[place].live
            else:
                self.others.append(one)
        return self._quiet[0][0] if self._quiet else math.inf

    def troubled(self, until: float) -> list[int]:
        """Those that are not at full speed until then."""
        self._leave(until)
        return self.others

    def _leave(self, until: float) -> None:
        while self._quiet and self._quiet[0][0] <= until:
            _, one = heappop(self._quiet)
            self.workers -= self._struck[one].stretches[self.places[one]].live
            self.others.append(one)


def in_meetings(lives: Lives, way: Way, work: float, exchange: float, detect: float) -> Spent:
    """All learners meet when each has done `work` seconds of it; then comes an exchange.

    Who is gone before that has lost what it had done: it is waited for until it has done all of it again, or, where
    the others go on, left out until the next meeting.
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
        tried = [_attempt(lives.struck[one], paths.places[one], now, work) for one in paths.troubled(now + work)]
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
    """When they meet."""
    if not goes_on:
        return max([others, *(one.arrival for one in tried)])
    there = [one.arrival for one in tried if one.lost_at == math.inf]
    if not there and not others:
        return min((one.arrival for one in tried), default=math.inf)
    ends = max([others, *there])
    return max([ends, *(min(one.lost_at + detect, one.arrival) for one in tried if one.lost_at < math.inf)])


def _covered(times: Sequence[tuple[float, float]], until: float) -> float:
    """Seconds that at least one of these covers."""
    found, at = 0.0, 0.0
    for begin, end in sorted(times):
        begin, end = max(begin, at), min(end, until)
        if end > begin:
            found += end - begin
            at = end
    return found
