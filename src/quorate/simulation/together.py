"""Strategies under which all workers meet: in every step, or every so many; times alone.

If all meet in every step, parts of the gradient are sent during the backward pass, and share the links (`in_line`). The
time after the last worker's arrival is the cost of the exchange. Means of parameters are sent when all have arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from quorate.core.errors import ConfigurationError
from quorate.simulation.codes import Codes
from quorate.simulation.links import Taken, in_line, parts_of
from quorate.simulation.played import Case, Formed, Played

if TYPE_CHECKING:
    from quorate.simulation.played import Column


class Meetings:
    """A run in progress; times of all workers, by rank."""

    def __init__(self, case: Case) -> None:
        import numpy as np

        self.case, self.played = case, Played()
        self.now = np.zeros(case.workers)
        self.step = 0

    def synchronous(self) -> None:
        """Simulate one step, with a mean of gradients at its end."""
        import numpy as np

        case, now = self.case, self.now
        before, backward, after = case.drawn.of_all(self.step)
        arrive = now + before
        last = done = float(arrive.max())
        sizes = parts_of(case.nbytes)
        if case.workers > 1 and case.codes is not None:
            done = self._coded(case.codes, arrive, backward)
        elif case.workers > 1:
            done = self._travelled(sizes, arrive, backward)
        self.now = done + after
        self.played.steps(now, arrive, np.full_like(now, last), np.full_like(now, done), self.now)
        self._formed(done, sizes)

    def _coded(self, codes: Codes, arrive: Column, backward: Column) -> float:
        """Return when the sum of all parts is decoded, which begins when all of it has arrived. A part is encoded when
        its gradients are ready, which delays later parts."""
        links, size = self.case.links, self.case.workers
        under_way = list[tuple[float, Taken]]()
        encoded, ready = 0.0, 0
        for numel, nbytes in codes.parts:
            ready += numel
            encoded += codes.encoding(numel)
            left = 1.0 - ready / codes.numel
            met = float((arrive - left * backward).max()) + encoded
            under_way.append((met, codes.taken(nbytes, links, size)))
        self.played.coding += size * sum(
            codes.encoding(numel) + codes.decoding(numel, links, size) for numel, _ in codes.parts
        )
        under_way.append((float(arrive.max()) + encoded, links.all_reduce(codes.dense, size)))
        there = in_line(under_way)
        decoded = there + sum(codes.decoding(numel, links, size) for numel, _ in codes.parts)
        return decoded + in_line([(0.0, codes.second(nbytes, links, size)) for _, nbytes in codes.parts])

    def _travelled(self, sizes: Sequence[int], arrive: Column, backward: Column) -> float:
        """Return when the last part has reached every worker."""
        case = self.case
        if len(sizes) == 1:
            return float(arrive.max()) + case.links.all_reduce(sizes[0], case.workers).seconds
        under_way, whole = list[tuple[float, Taken]](), sum(sizes)
        for ready, size in zip(accumulate(sizes), sizes, strict=True):
            met = float((arrive - (1.0 - ready / whole) * backward).max())
            under_way.append((met, case.links.all_reduce(size, case.workers)))
        return in_line(under_way)

    def alone(self) -> None:
        """Simulate one step of all workers, each alone."""
        now = self.now
        before, _, after = self.case.drawn.of_all(self.step)
        arrive = now + before
        self.now = arrive + after
        self.played.steps(now, arrive, arrive, arrive, self.now)

    def one_alone(self, rank: int) -> None:
        """Simulate one step of this worker alone."""
        busy, begin = self.case.drawn, float(self.now[rank])
        arrive = begin + busy.before(rank, self.step)
        end = arrive + busy.after(rank, self.step)
        self.played.step(rank, begin, arrive, arrive, arrive, end)
        self.now[rank] = end

    def average(self, vectors: int) -> None:
        """Simulate, after a step of all, a mean of `vectors` times as many numbers as there are parameters."""
        import numpy as np

        case, played = self.case, self.played
        nbytes = case.nbytes * vectors
        last = float(self.now.max())
        if case.codes is not None and case.workers > 1:
            done = self._coded(case.codes, self.now, np.zeros(case.workers))
        else:
            done = last + case.links.all_reduce(nbytes, case.workers).seconds
        newest: dict[int, int] = {}
        for place in range(len(played.rank) - 1, -1, -1):
            if newest.setdefault(played.rank[place], place) == place and len(newest) == case.workers:
                break
        for rank, place in newest.items():
            played.last[place], played.done[place], played.end[place] = last, done, done
            played.arrive[place] = self.now[rank]
        self.now = np.full(case.workers, done)
        self._formed(done, [nbytes])

    def _formed(self, time: float, sizes: Sequence[int]) -> None:
        case = self.case
        self.played.rounds.append(Formed(time, case.workers, {0: case.workers}))
        links, size, codes = case.links, case.workers, case.codes
        if codes is None:
            self.played.bytes_out += sum(links.sent_by_all(nbytes, size) for nbytes in sizes)
        else:
            self.played.bytes_out += links.sent_by_all(codes.dense, size)
            self.played.bytes_out += sum(codes.sent_by_all(nbytes, links, size) for _, nbytes in codes.parts)

    def watched(self) -> None:
        """Report progress."""
        self.case.watch(min(1.0, self.step / self.case.steps))


def in_every_step(case: Case) -> Played:
    """Simulate meetings of all in every step."""
    run = Meetings(case)
    while run.step < case.steps:
        run.synchronous()
        run.step += 1
        run.watched()
    return run.played


def every_so_many(case: Case, count: float, unit: str, *, vectors: int, after: int = 0) -> Played:
    """Simulate meetings of all in the first `after` steps; then every `count` steps, examples or seconds, for
    parameters."""
    if unit == "examples" and not case.examples:
        raise ConfigurationError("a period in examples needs the examples per step; give --batch")
    steps_of_a_period = count if unit == "steps" else count / (case.examples or 1)
    run = Meetings(case)
    while run.step < min(after, case.steps):
        run.synchronous()
        run.step += 1
        run.watched()
    done, began = 0, run.now.tolist()
    taken = [run.step] * case.workers
    while run.step < case.steps:
        if unit == "seconds":
            _for_so_long(run, count, began, taken)
            run.average(vectors)
            began = run.now.tolist()
            run.step = max(taken)
        else:
            run.alone()
            run.step, done = run.step + 1, done + 1
            if done >= steps_of_a_period:
                run.average(vectors)
                done = 0
        run.watched()
    return run.played


def _for_so_long(run: Meetings, seconds: float, began: Sequence[float], taken: list[int]) -> None:
    """Let each worker step for so many seconds; `taken` counts the steps of each."""
    for rank, since in enumerate(began):
        while True:
            run.step = taken[rank]
            run.one_alone(rank)
            taken[rank] += 1
            if run.now[rank] - since >= seconds:
                break
