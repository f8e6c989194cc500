"""Learners of several workers: these step together, are equal to the bit, and take part in rounds as one.

In each step they exchange gradients, and with them where they stand in their rounds. So all of them know the same of
all of them, and decide alike: which rounds are applied in this step, who hands in, whose replica is out of step and has
to be copied anew. Who hands in is the lowest rank of those that step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.groups import Group, Said
from quorate.core.means import Mean
from quorate.core.strategy import Worker
from quorate.strategies.parts.local_steps import Period

Learners = int | Literal["each", "host"]


def learners_from(setting: Learners, worker: Worker) -> tuple[int, ...]:
    """Which learner each worker is of, by rank; empty where each is one of its own.

    Raises `ConfigurationError` for a number that cannot be.
    """
    if setting == "each":
        return ()
    if setting == "host":
        hosts = worker.neighbours.hosts()[: worker.size]
        names = list(dict.fromkeys(hosts))
        return tuple(names.index(host) for host in hosts)
    assert isinstance(setting, int)
    if not 1 <= setting <= worker.size:
        raise ConfigurationError(
            f"learners is {setting}, and there are {worker.size} workers; it must be a number from 1 to {worker.size}, "
            '"each" or "host"'
        )
    return tuple(rank * setting // worker.size for rank in range(worker.size))


class Whole(Protocol):
    """What a learner keeps, as it goes with a copy of a replica."""

    times: int

    def told_whole(self, worker: Worker) -> tuple[dict[str, Any], list[Tensor]]:
        """As JSON and tensors."""

    def become(self, worker: Worker, told: Mapping[str, Any], tensors: Sequence[Tensor]) -> None:
        """What another worker of the learner told."""


@dataclass(frozen=True)
class Met:
    """What the workers of a learner have in common in one step."""

    weight: float
    """Of all of their gradients together."""
    examples: float
    """Likewise."""
    seconds: float
    """The most that any has counted since the learner handed in."""
    up_to: int | None
    """The newest round that is applied in this step; None: all that are here, as nobody else steps."""


@dataclass
class Mates:
    """The workers of one learner, as one of them sees them. `of` says which learner each worker is of, by rank; `apply`
    applies a round."""

    group: Group
    of: tuple[int, ...]
    period: Period
    apply: Callable[[Mean], None]
    met: Met | None = None
    """Since the step before."""
    _there: list[int] = field(default_factory=list)
    """Who stepped in the newest exchange, in order."""
    _holds: dict[int, int] = field(default_factory=dict)
    """By rank: see `core.groups.Standing.holds`, as told last."""
    _have_handed_in: set[int] = field(default_factory=set)
    """Since all rested last."""

    # -- steps

    def meet(self, worker: Worker, learner: Whole, seconds: float) -> None:
        """Exchange gradients, and be equal to the others; `seconds` have passed since the learner handed in."""
        header = {
            "examples": worker.examples if self.period.unit == "examples" else 0,
            "seconds": seconds if self.period.unit == "seconds" else 0.0,
        }
        found = self._exchange(worker, learner, header, weight=worker.weight)
        equal = equal_ones(found)
        up_to, now = self._agree(worker, learner, found)
        self._repair(worker, learner, now, up_to)
        self.group.write_gradient([found[rank] for rank in equal])
        self.met = Met(
            weight=sum(found[rank].weight for rank in equal),
            examples=sum(found[rank].header["examples"] for rank in equal),
            seconds=max(found[rank].header["seconds"] for rank in equal),
            up_to=up_to,
        )

    def wait(self, worker: Worker, learner: Whole, handed: Any) -> None:
        """All wait until the round is here that the one that hands in waits for (`handed`, None on the others), and
        apply it in this step."""
        needs = 0 if handed is None else handed.wait()
        up_to, _ = self._agree(worker, learner, self._exchange(worker, learner, {"needs": needs}), needs)
        assert self.met is not None
        self.met = Met(self.met.weight, self.met.examples, self.met.seconds, up_to)

    def hands_in(self, worker: Worker) -> bool:
        """Whether this worker does for all."""
        first = self._there[0]
        self._have_handed_in.add(first)
        if first == worker.rank:
            return True
        if len(self._there) > 1:
            worker.rounds.standing.withdraw()
        return False

    # -- rests

    def leaves(self, worker: Worker, learner: Whole, take: Callable[[], None]) -> bool:
        """This worker steps no more until all have rested; whether it hands in what the learner has left. `take`
        applies the rounds that are here."""
        standing = worker.rounds.standing
        if self.group.others:
            standing.withdraw()
        found = self._exchange(worker, learner, {}, leaves="ended" if worker.has_ended else "rests")
        equal = equal_ones({rank: one for rank, one in found.items() if one.leaves})
        if any(not one.leaves for one in found.values()) or min(equal) != worker.rank:
            return False
        while self._held_by_others(worker) > standing.version:
            standing.until(self._held_by_others(worker))
            take()
        # What one has handed in that died may be in any round that was formed before its death was known.
        while not self._have_handed_in & self.group.dead <= standing.missing:
            standing.call()
            take()
        return True

    def rested(self, worker: Worker) -> None:
        """All workers have: whoever has not ended steps again."""
        self.met, self._holds = None, {}
        self._have_handed_in.clear()
        self.group.rested(worker.rounds.standing.version)

    # -- what rounds say

    def told_in(self, told: Mapping[int, Sequence[Any]]) -> Sequence[Any]:
        """What any of them told with what it gave to a round."""
        return next((told[rank] for rank in self.group.ranks if rank in told), ())

    # -- inside

    def _exchange(self, worker: Worker, learner: Whole, header: Mapping[str, Any], **about: Any) -> dict[int, Said]:
        """As `Group.exchange`. Of those that leave nothing more is heard."""
        standing = worker.rounds.standing
        told = {
            "applied": standing.version,
            "newest": standing.newest,
            "holds": standing.holds,
            "times": learner.times,
            "step": worker.step,
            "needs": 0,
            "examples": 0,
            "seconds": 0.0,
            **header,
        }
        found = self.group.exchange(told, **about)
        self._holds |= {rank: int(one.header["holds"]) for rank, one in found.items()}
        learner.times = max(int(one.header["times"]) for one in found.values())
        if not about.get("leaves"):
            found = {rank: one for rank, one in found.items() if not one.leaves}
        self._there = sorted(found)
        return found

    def _agree(
        self, worker: Worker, learner: Whole, found: dict[int, Said], needs: int = 0
    ) -> tuple[int | None, dict[int, Said]]:
        """The newest round that all apply now, and what they have said by then.

        That is the newest that all have. Where some have applied a later one (in a copy of a replica), or it is needed,
        the others wait until they have it, too.
        """
        standing = worker.rounds.standing
        while len(found) > 1:
            said = [one.header for one in found.values()]
            lowest = min(one["newest"] for one in said)
            most = max(max(one["applied"], one["needs"] if one["needs"] <= one["newest"] else 0) for one in said)
            if lowest >= most:
                return int(lowest), found
            if standing.newest < most:
                standing.until(most)
                for _ in worker.rounds.completed(up_to=0):
                    raise AssertionError("rounds are counted from 1")  # a copy of a replica is taken
            found = self._exchange(worker, learner, {"needs": needs})
        return None, found

    def _repair(self, worker: Worker, learner: Whole, found: dict[int, Said], up_to: int | None) -> None:
        """Whoever is not equal to the others gets the replica of one of them, as it is after round `up_to`."""
        equal = equal_ones(found)
        if len(equal) < len(found):
            for one in worker.rounds.completed(up_to=up_to, keeps_at_once=True):
                self.apply(one)
        while len(equal) < len(found):
            source = min(equal)
            told = learner.told_whole(worker) if source == worker.rank else ({}, [])
            takes = worker.rank not in equal
            given = self.group.copy_replica(source, *told, takes=takes)
            if given is not None:
                if takes:
                    learner.become(worker, *given)
                break
            found = {rank: one for rank, one in found.items() if rank != source}
            equal = equal_ones(found)
        self.group.trust()

    def _held_by_others(self, worker: Worker) -> int:
        """The newest round that may have something of another one that lives."""
        gone = self.group.dead | {worker.rank}
        return max((number for rank, number in self._holds.items() if rank not in gone), default=0)


def equal_ones(found: Mapping[int, Said]) -> list[int]:
    """Whose replicas are equal, and further than those of the others, in order of rank.

    Who does not doubt is equal to all who do not.
    """
    sure = [rank for rank, one in found.items() if one.digest is None]
    if sure:
        return sure
    ahead = max(found, key=lambda rank: (found[rank].header["step"], -rank))
    return [rank for rank, one in found.items() if one.digest == found[ahead].digest]
