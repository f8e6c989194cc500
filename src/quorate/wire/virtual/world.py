"""A virtual world: a task, run by any number of virtual workers inside this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import torch

from quorate.core.contracts import DEFAULT_TIMEOUT, Wire
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.clock import VirtualClock
from quorate.wire.virtual.compute import ComputeModel, Constant
from quorate.wire.virtual.generators import Generators
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.stage import MAIN, Stage
from quorate.wire.virtual.wire import VirtualWire

T = TypeVar("T")

WINDING_UP_SECONDS = 5.0
"""How long an interrupted world may take to end, by the wall clock."""
LOOK_SECONDS = 0.2
"""In which an interrupt is seen at the latest."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What became of one worker."""

    rank: int
    result: T | None
    error: BaseException | None
    """What its task raised; of a crashed worker, a `PeerFailed` that names it."""
    is_crashed: bool
    seconds: float
    """The virtual time at which it ended."""


class VirtualWorld:
    """`size` virtual workers, each a thread of which one runs at a time, on a virtual clock.

    Of the `joiners` the task is run as well, with the ranks from `size` on: when they join is up to the task.
    The same seed gives the same run. `run` and `outcomes` each start anew. `stack_bytes` is each thread's (None: 8 MiB
    up to 64 workers, 1 MiB up to 1,024, then 256 KiB). With `generators` every worker has random generators of its
    own (torch's, numpy's and python's defaults), which the world's seed seeds alike: a worker draws other numbers
    than the rest once it has distributed an optimizer. With `is_traced`, `trace`
    holds a line for each event of the latest run: virtual time, rank, event. torch uses one thread meanwhile.
    """

    def __init__(
        self,
        size: int,
        *,
        joiners: int = 0,
        seed: int = 0,
        network: Network | None = None,
        compute: ComputeModel | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        generators: bool = False,
        is_traced: bool = False,
        stack_bytes: int | None = None,
    ) -> None:
        if size < 1:
            raise ConfigurationError(f"a world has at least one worker, not {size!r}")
        if not timeout > 0:
            raise ConfigurationError(f"a timeout is a number of seconds above 0, not {timeout!r}")
        self.size, self._joiners = size, joiners
        self.seed = seed
        self.network = Network() if network is None else network
        self.compute = Constant(0.010) if compute is None else compute
        self.timeout = timeout
        self._generators = generators
        self._is_traced = is_traced
        self._stack_bytes = _usual_stack_bytes(size) if stack_bytes is None else stack_bytes
        self._stage = self._new_stage()

    @property
    def trace(self) -> list[str]:
        """The events of the latest run."""
        return self._stage.trace

    @property
    def clock(self) -> VirtualClock:
        """The virtual clock of the latest run; only `now` may be asked from outside."""
        return VirtualClock(self._stage.scheduler, 0, self.compute)

    @property
    def stage(self) -> Stage:
        """What the latest run is played on."""
        return self._stage

    def run(self, task: Callable[[Wire], T]) -> list[T]:
        """The results of `task` on every worker, by rank. Raises what the first worker to fail raised."""
        outcomes = self.outcomes(task)
        for life in self._stage.failures:
            assert life.error is not None
            life.error.add_note(f"(virtual rank {life.rank} of {self.size}, after {life.seconds:.6f} virtual seconds)")
            raise life.error
        return [outcome.result for outcome in outcomes]  # type: ignore[misc]

    def outcomes(
        self, task: Callable[[Wire], T], *, on_start: Callable[[Stage], None] | None = None
    ) -> list[Outcome[T]]:
        """What became of every worker, by rank; nothing they raised is raised here.

        `on_start` sees the run's stage before any worker runs.
        """
        stage = self._stage = self._new_stage()
        if on_start is not None:
            on_start(stage)
        with _one_torch_thread(), _stack_size(self._stack_bytes), _kept_generators(self._generators):
            try:
                for rank in range(self.size + self._joiners):
                    wire = VirtualWire(stage, rank, VirtualClock(stage.scheduler, rank, self.compute))
                    stage.start(rank, MAIN, partial(stage.play, rank, partial(task, wire)))
            except ConfigurationError:
                stage.scheduler.interrupt(KeyboardInterrupt)
                stage.scheduler.begin()
                raise
            self._play(stage)
        return [Outcome(life.rank, life.result, life.error, life.is_crashed, life.seconds) for life in stage.lives]

    def _play(self, stage: Stage) -> None:
        try:
            stage.scheduler.begin()  # workers run from here on, so an interrupt may come before this returns
            while not stage.scheduler.finished.wait(LOOK_SECONDS):
                pass  # a signal that comes just before a wait without an end would be seen after it only
        except KeyboardInterrupt:
            stage.scheduler.interrupt(KeyboardInterrupt)
            stage.scheduler.finished.wait(WINDING_UP_SECONDS)
            raise

    def _new_stage(self) -> Stage:
        return Stage(
            self.size,
            self.size + self._joiners,
            seed=self.seed,
            network=self.network,
            timeout=self.timeout,
            has_generators=self._generators,
            is_traced=self._is_traced,
        )


def _usual_stack_bytes(size: int) -> int:
    if size <= 64:
        return 8 << 20
    return (1 << 20) if size <= 1024 else (256 << 10)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _stack_size(stack_bytes: int) -> Iterator[None]:
    before = threading.stack_size(stack_bytes)
    try:
        yield
    finally:
        threading.stack_size(before)


@contextmanager
def _kept_generators(is_needed: bool) -> Iterator[None]:
    mine = Generators(0) if is_needed else None
    if mine is not None:
        mine.save()
    try:
        yield
    finally:
        if mine is not None:
            mine.load()
