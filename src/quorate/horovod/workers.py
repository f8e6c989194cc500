"""The workers as Horovod counts them: ranks, hosts, process sets, and the ways to reduce."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import TypeVar

from quorate.core.contracts import Wire, Work
from quorate.core.errors import ConfigurationError
from quorate.launch.worker.collectives import result_of
from quorate.launch.worker.join import join
from quorate.launch.worker.world import World
from quorate.wire import current

T = TypeVar("T")


class ReduceOp(enum.Enum):
    """The result of a reduction of the tensors of all workers."""

    AVERAGE = "average"
    SUM = "sum"
    ADASUM = "adasum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"


Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT


class Workers:
    """The workers of one run, seen from one of them, and the channels of its collectives."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.process_sets = 0
        self.joins = 0
        self._channels: dict[tuple[str, tuple[int, ...] | None], Wire] = {}

    @property
    def joined(self) -> World:
        """The world. Raises `ConfigurationError` before `init()`."""
        if self.world is None:
            raise ConfigurationError("Horovod has not been initialized; call hvd.init() first")
        return self.world

    def channel(self, name: str | None, process_set: ProcessSet) -> Wire:
        """Return the wire for the collectives of a name; those without a name have one in common."""
        members = None if process_set.ranks is None else tuple(process_set.ranks)
        key = (name or "", members)
        if key not in self._channels:
            wire = self.joined.wire.channel(f"horovod/{name or ''}" if members is None else f"horovod/{members}/{name}")
            self._channels[key] = wire if members is None else wire.group(members)
        return self._channels[key]


def workers() -> Workers:
    """Return the workers of the run. Raises `ConfigurationError` before `init()`."""
    place = current.place()
    of_run = Workers() if place is None else place.context(Workers)
    of_run.joined  # noqa: B018 - raises before init()
    return of_run


class ProcessSet:
    """Some of the workers, by rank, for collectives among them. None: all of them."""

    def __init__(self, ranks: Iterable[int] | None = None) -> None:
        self.ranks: list[int] | None = None if ranks is None else sorted(set(ranks))
        self.process_set_id: int | None = None if ranks is not None else 0

    def included(self) -> bool:
        """Return whether this worker is in the set."""
        return self.ranks is None or rank() in self.ranks

    def rank(self) -> int:
        """Return the rank of this worker in the set; -1 outside of it."""
        if self.ranks is None:
            return rank()
        return self.ranks.index(rank()) if self.included() else -1

    def size(self) -> int:
        """Return the number of workers in the set."""
        return size() if self.ranks is None else len(self.ranks)

    def __repr__(self) -> str:
        return f"ProcessSet({'' if self.ranks is None else self.ranks})"


global_process_set = ProcessSet()


def init(comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet] | None = None) -> None:
    """Join the workers of the run, as `quorate.join()` does; calling it again changes nothing.

    Raises:
        ConfigurationError: If `comm` is given: which workers there are is said by the launcher.
    """
    if comm is not None:
        raise ConfigurationError(
            "hvd.init(comm=...) is not supported: the launcher says which workers there are; pass process_sets for "
            "collectives among some of them"
        )
    world = join()
    current.here().context(Workers).world = world
    for process_set in process_sets or ():
        add_process_set(process_set)


def shutdown() -> None:
    """End the training of this worker: optimizers wait for the others, and replicas become equal."""
    current.here().leave()
    current.here().context(Workers).world = None


def is_initialized() -> bool:
    """Return whether `init()` was called."""
    place = current.place()
    return place is not None and place.context(Workers).world is not None


def rank() -> int:
    """Return the rank of this worker among all."""
    return workers().joined.rank


def size() -> int:
    """Return the number of workers."""
    return workers().joined.size


def _hosts() -> list[list[int]]:
    """Return the ranks on each host, hosts in order of their lowest rank."""
    world, hosts = workers().joined, dict[int, list[int]]()
    for other in range(world.size):
        hosts.setdefault(world.wire.host_of(other), []).append(other)
    return [hosts[first] for first in sorted(hosts)]


def _own_host() -> list[int]:
    return next(ranks for ranks in _hosts() if rank() in ranks)


def local_rank() -> int:
    """Return the rank of this worker among those of its host."""
    return workers().joined.local_rank


def local_size() -> int:
    """Return the number of workers on this host."""
    return len(_own_host())


def cross_rank() -> int:
    """Return the place of this host among those that have a worker of this local rank."""
    return [rank() in ranks for ranks in _hosts() if len(ranks) > local_rank()].index(True)


def cross_size() -> int:
    """Return the number of hosts that have a worker of this local rank."""
    return sum(len(ranks) > local_rank() for ranks in _hosts())


def is_homogeneous() -> bool:
    """Return whether all hosts have equally many workers."""
    return len({len(ranks) for ranks in _hosts()}) == 1


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Register a set of workers, given as ranks or as a `ProcessSet`; every worker calls it, in the same order.

    Raises:
        ConfigurationError: If a rank does not exist, or the set is empty.
    """
    of_run = workers()
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    ranks = added.ranks
    if ranks is not None and (not ranks or not set(ranks) <= set(range(of_run.joined.size))):
        raise ConfigurationError(
            f"a process set of ranks {ranks} is impossible; ranks are 0 to {of_run.joined.size - 1}"
        )
    of_run.process_sets += 1
    added.process_set_id = of_run.process_sets
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set of workers; return whether it was registered, and is not that of all workers."""
    was_registered = process_set.ranks is not None and process_set.process_set_id is not None
    if was_registered:
        process_set.process_set_id = None
    return was_registered


def wait(work: Work[T], call: str) -> T:
    """Return the result of a collective; in a long wait no round waits for this worker, and it serves others."""
    workers()
    return result_of(work, current.here(), f"hvd.{call}()")


def when_members(process_set: ProcessSet, call: str) -> None:
    """Raise `ConfigurationError` if this worker is outside of the set, or the set is not registered."""
    if process_set.process_set_id is None:
        raise ConfigurationError(f"hvd.{call} was given a process set that is not registered; call hvd.add_process_set")
    if not process_set.included():
        raise ConfigurationError(f"hvd.{call} was called on rank {rank()}, which is not in {process_set}")
