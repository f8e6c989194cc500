"""Learners of several workers, which step together, are equal to the bit, and take part in rounds as one.

In each step they exchange gradients, with their places in the rounds. So all have the same messages and decide alike:
which rounds are applied in this step, which worker contributes for all, and whose replica differs and is copied again.
The lowest rank of the workers that step contributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.fields import Fields
from quorate.core.groups import Group, Leaves, Said
from quorate.core.means import Mean
from quorate.core.strategy import Strategy, Worker
from quorate.strategies.parts.local_steps import Period

Learners = int | Literal["each", "host"]


@dataclass(frozen=True, kw_only=True)
class LearnerSettings(Strategy):
    """The settings that strategies of learners on rounds have in common; their hooks are their own."""

    compresses = "deltas"

    learners: int | Literal["each", "host"] = "each"
    """Workers that form a learner: each worker, the workers of each host, or a number of groups of consecutive ranks,
    whose sizes differ by at most one. The workers of a learner average their gradients in every step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.learners, int) and self.learners < 1:
            raise ConfigurationError(f'learners is {self.learners}; it must be a number (at least 1), "each" or "host"')

    @property
    def lets_join(self) -> bool:
        return super().lets_join and self.learners == "each"

    @property
    def agrees_in_backward(self) -> bool:
        return self.learners != "each"

    def workers_of_learner(self, worker: Worker, period: Period) -> LearnerWorkers | None:
        """Return the workers of this worker's learner; None if it is one by itself."""
        of = learners_from(self.learners, worker)
        if not of or worker.rank >= worker.size:  # who comes later is refused: see `lets_join`
            return None
        ranks = [rank for rank, learner in enumerate(of) if learner == of[worker.rank]]
        return LearnerWorkers(worker.group(ranks), of, period, partial(self.apply, worker))


def learners_from(setting: Learners, worker: Worker) -> tuple[int, ...]:
    """Return the number of each worker's learner, by rank; nothing if each worker is a learner.

    Raises `ConfigurationError` for a number of learners that is impossible.
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
    """The state of a learner, as it travels with a copy of a replica."""

    times: int

    def full_state(self, worker: Worker) -> tuple[dict[str, Any], list[Tensor]]:
        """Return the state as JSON and tensors."""

    def become(self, worker: Worker, state: Mapping[str, Any], tensors: Sequence[Tensor]) -> None:
        """Take over the state of another worker of the learner."""


@dataclass(frozen=True)
class Met:
    """The numbers that the workers of a learner have in common in one step."""

    weight: float
    """The weight of all their gradients together."""
    examples: float
    """The examples of all their gradients together."""
    seconds: float
    """The most seconds that a worker has counted since the learner contributed."""
    up_to: int | None
    """The newest round to apply in this step; None: all that have arrived, as no other worker steps."""


@dataclass(frozen=True, slots=True)
class StandFields(Fields):
    """The header of a worker's message to the others of its learner."""

    applied: int  # the newest round that it has applied
    newest: int  # the newest round that it has
    holds: int  # see `core.groups.Standing.holds`
    times: int  # the number of contributions of the learner
    step: int
    needs: int = 0  # the round that has its contribution, if it waits for it
    examples: float = 0  # those of its gradient, where a period is a number of examples
    seconds: float = 0.0  # those since the learner contributed, where a period is a time


@dataclass
class LearnerWorkers:
    """The workers of one learner, as one of them sees them.

    `of` has the number of each worker's learner, by rank; `apply` applies a round.
    """

    group: Group
    of: tuple[int, ...]
    period: Period
    apply: Callable[[Mean], None]
    met: Met | None = None
    """The numbers of this step, once they have been exchanged."""
    _stands: dict[int, StandFields] = field(default_factory=dict)
    """By rank, in order: those of the workers that stepped in the newest exchange."""
    _holds: dict[int, int] = field(default_factory=dict)
    """The newest `core.groups.Standing.holds` of each worker, by rank."""
    _have_handed_in: set[int] = field(default_factory=set)
    """The ranks that have contributed for the learner since the newest pause of all."""

    # -- steps

    def meet(self, worker: Worker, learner: Whole, seconds: float) -> None:
        """Exchange gradients, and become equal to the others; `seconds` have passed since the learner contributed."""
        examples = worker.examples if self.period.unit == "examples" else 0
        seconds = seconds if self.period.unit == "seconds" else 0.0
        messages = self._exchange(worker, learner, examples=examples, seconds=seconds, weight=worker.weight)
        equal = equal_ones(messages, self._stands)
        stands = [self._stands[rank] for rank in equal]
        up_to, now = self._agree(worker, learner, messages)
        self._repair(worker, learner, now, up_to)
        self.group.write_gradient([messages[rank] for rank in equal])
        self.met = Met(
            weight=sum(messages[rank].weight for rank in equal),
            examples=sum(stand.examples for stand in stands),
            seconds=max(stand.seconds for stand in stands),
            up_to=up_to,
        )

    def wait(self, worker: Worker, learner: Whole, handed: Any) -> None:
        """Wait for the round of the contribution `handed` (None on workers without one), and apply it now."""
        needs = 0 if handed is None else handed.wait()
        up_to, _ = self._agree(worker, learner, self._exchange(worker, learner, needs=needs), needs)
        assert self.met is not None
        self.met = Met(self.met.weight, self.met.examples, self.met.seconds, up_to)

    def hands_in(self, worker: Worker) -> bool:
        """Return whether this worker contributes for the learner."""
        first = min(self._stands)
        self._have_handed_in.add(first)
        if first == worker.rank:
            return True
        if len(self._stands) > 1:
            worker.rounds.standing.withdraw()
        return False

    # -- pauses

    def leaves(self, worker: Worker, learner: Whole, take: Callable[[], None]) -> bool:
        """Take no more steps until the pause of all; return whether this worker contributes what the learner has left.

        `take` applies the rounds that have arrived.
        """
        standing = worker.rounds.standing
        if self.group.others:
            standing.withdraw()
        messages = self._exchange(worker, learner, leaves="ended" if worker.has_ended else "pauses")
        equal = equal_ones({rank: x for rank, x in messages.items() if x.leaves}, self._stands)
        if any(not message.leaves for message in messages.values()) or min(equal) != worker.rank:
            return False
        while self._held_by_others(worker) > standing.version:
            standing.until(self._held_by_others(worker))
            take()
        # A contribution of a dead worker may be in any round that was formed before its death was known.
        while not self._have_handed_in & self.group.dead <= standing.missing:
            standing.call()
            take()
        return True

    def paused(self, worker: Worker) -> None:
        """End the pause of all: workers that have not ended step again."""
        self.met, self._holds = None, {}
        self._have_handed_in.clear()
        self.group.paused(worker.rounds.standing.version)

    # -- what rounds say

    def payload_in(self, payloads: Mapping[int, Sequence[Any]]) -> Sequence[Any]:
        """Return the payloads of the worker that has contributed to a round for the learner."""
        return next((payloads[rank] for rank in self.group.ranks if rank in payloads), ())

    # -- inside

    def _exchange(
        self,
        worker: Worker,
        learner: Whole,
        *,
        needs: int = 0,
        examples: float = 0,
        seconds: float = 0.0,
        weight: float | None = None,
        leaves: Leaves = "",
    ) -> dict[int, Said]:
        """Exchange messages as `Group.exchange`; workers that leave send no more."""
        place, times = worker.rounds.standing, learner.times
        own = StandFields(place.version, place.newest, place.holds, times, worker.step, needs, examples, seconds)
        messages = self.group.exchange(own.header(), weight=weight, leaves=leaves)
        stands = {rank: StandFields.read(message.header) for rank, message in messages.items()}
        self._holds |= {rank: stand.holds for rank, stand in stands.items()}
        learner.times = max(stand.times for stand in stands.values())
        if not leaves:
            messages = {rank: message for rank, message in messages.items() if not message.leaves}
        self._stands = {rank: stands[rank] for rank in sorted(messages)}
        return messages

    def _agree(
        self, worker: Worker, learner: Whole, messages: dict[int, Said], needs: int = 0
    ) -> tuple[int | None, dict[int, Said]]:
        """Return the newest round that all apply now, and the messages by then.

        It is the newest that all have. If some have applied a later one (in a copy of a replica), or need it, the
        others wait until they have it, too.
        """
        standing = worker.rounds.standing
        while len(messages) > 1:
            stands = self._stands.values()
            lowest = min(stand.newest for stand in stands)
            needed = [stand.needs if stand.needs <= stand.newest else 0 for stand in stands]
            most = max(*needed, *(stand.applied for stand in stands))
            if lowest >= most:
                return lowest, messages
            if standing.newest < most:
                standing.until(most)
                for _ in worker.rounds.completed(up_to=0):
                    raise AssertionError("rounds are counted from 1")  # a copy of a replica is taken
            messages = self._exchange(worker, learner, needs=needs)
        return None, messages

    def _repair(self, worker: Worker, learner: Whole, messages: dict[int, Said], up_to: int | None) -> None:
        """Copy a replica, as it is after round `up_to`, to the workers whose replicas differ."""
        equal = equal_ones(messages, self._stands)
        if len(equal) < len(messages):
            for result in worker.rounds.completed(up_to=up_to, keeps_at_once=True):
                self.apply(result)
        while len(equal) < len(messages):
            source = min(equal)
            state = learner.full_state(worker) if source == worker.rank else ({}, [])
            takes = worker.rank not in equal
            copy = self.group.copy_replica(source, *state, takes=takes)
            if copy is not None:
                if takes:
                    learner.become(worker, *copy)
                break
            messages = {rank: message for rank, message in messages.items() if rank != source}
            equal = equal_ones(messages, self._stands)
        self.group.trust()

    def _held_by_others(self, worker: Worker) -> int:
        """Return the newest round that may have a contribution of another living worker."""
        dead = self.group.dead | {worker.rank}
        return max((number for rank, number in self._holds.items() if rank not in dead), default=0)


def equal_ones(messages: Mapping[int, Said], stands: Mapping[int, StandFields]) -> list[int]:
    """Return the ranks whose replicas are equal, and further than those of the others, in order.

    Workers that do not doubt their replicas are equal.
    """
    sure = [rank for rank, message in messages.items() if message.digest is None]
    if sure:
        return sure
    ahead = max(messages, key=lambda rank: (stands[rank].step, -rank))
    return [rank for rank, message in messages.items() if message.digest == messages[ahead].digest]
