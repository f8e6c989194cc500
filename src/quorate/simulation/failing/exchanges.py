"""The seconds that exchanges add to a step without failures, from the network, the parameters and the step. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from quorate.core.durations import FORWARD_SHARE
from quorate.simulation.links import Links, Taken, in_line, parts_of


@dataclass(frozen=True)
class Exchanges:
    """Exchanges over `links`; without links they cost nothing."""

    links: Links | None = None
    parameters: int = 0

    @property
    def _nbytes(self) -> int:
        return 4 * self.parameters

    def within(self, workers: int, step: float) -> float:
        """Return the seconds that a mean of gradients adds to every step; parts of it are sent during the backward
        pass."""
        if self.links is None or workers == 1:
            return 0.0
        sizes = parts_of(self._nbytes)
        if len(sizes) == 1:
            return self.links.all_reduce(sizes[0], workers).seconds
        under_way, backward = list[tuple[float, Taken]](), (1 - FORWARD_SHARE) * step
        for ready, size in zip(accumulate(sizes), sizes, strict=True):
            met = step - (1 - ready / self._nbytes) * backward
            under_way.append((met, self.links.all_reduce(size, workers)))
        return in_line(under_way) - step

    def mean(self, learners: int) -> float:
        """Return the seconds of a mean of parameters, once all learners have arrived."""
        return 0.0 if self.links is None or learners == 1 else self.links.all_reduce(self._nbytes, learners).seconds

    def round(self, learners: int) -> float:
        """Return the seconds of a round: a call, a question, contributions and results. Learners on hosts of their own
        form the sum in pieces; in a mesh it goes through one learner."""
        if self.links is None or learners == 1:
            return 0.0
        in_pieces = replace(self.links, per_host=min(1, self.links.per_host)).in_pieces(self._nbytes, learners)
        if in_pieces is not None:
            return 2 * self.links.latency + in_pieces
        return 4 * self.links.latency + 2 * self.links.carrying(self._nbytes, learners - 1)
