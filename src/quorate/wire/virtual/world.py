"""A virtual world: any number of virtual workers inside this process that run a task."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import torch

from quorate.core.contracts import DEFAULT_TIMEOUT, Wire
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.compute import ComputeModel, Constant
from quorate.wire.virtual.generators import Generators
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.scheduler import Resumed, Scheduler
from quorate.wire.virtual.stage import MAIN, Stage
from quorate.wire.virtual.wire import VirtualWire

T = TypeVar("T")

WINDING_UP_SECONDS = 5.0
"""Longest end of an interrupted world, in seconds of the wall clock."""
LOOK_SECONDS = 0.2
"""Longest time until an interrupt is noticed."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The end of one worker: its result or error."""

    rank: int
    result: T | None
    error: BaseException | None
    """The error that its task raised; for a crashed worker a `PeerFailed` that names it."""
    is_crashed: bool
    seconds: float
    """The virtual time at which it ended."""


class VirtualWorld:
    """`size` virtual workers on a virtual clock; each is a thread, of which one runs at a time.

    The `joiners` run the task as well, with the ranks from `size` on: the task decides when they join. The same seed
    gives the same run. `run` and `outcomes` each restart it. `stack_bytes` is the stack of each thread (None: 8 MiB up
    to 64 workers, 1 MiB up to 1,024, then 256 KiB). With `generators` every worker has its own random generators
    (torch's, numpy's and python's defaults), with one seed from the world's seed. A worker draws other numbers than the
    others once it has distributed an optimizer. With `is_traced`, `trace` holds a line for each event of the latest
    run: virtual time, rank, event. torch uses one thread meanwhile. `resumed` is called whenever a worker goes on.
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
        resumed: Resumed = lambda rank: None,
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
        self._is_traced, self._resumed = is_traced, resumed
        self._stack_bytes = _usual_stack_bytes(size) if stack_bytes is None else stack_bytes
        self._stage = self._new_stage()

    @property
    def trace(self) -> list[str]:
        """The events of the latest run."""
        return self._stage.trace

    @property
    def stage(self) -> Stage:
        """The shared state of the latest run."""
        return self._stage

    def run(self, task: Callable[[Wire], T]) -> list[T]:
        """Return the results of `task` on every worker, by rank. Raises the error of the first worker to fail."""
        outcomes = self.outcomes(task)
        for life in self._stage.failures:
            assert life.error is not None
            life.error.add_note(f"(virtual rank {life.rank} of {self.size}, after {life.seconds:.6f} virtual seconds)")
            raise life.error
        return [outcome.result for outcome in outcomes]  # type: ignore[misc]

    def outcomes(
        self, task: Callable[[Wire], T], *, on_start: Callable[[Stage], None] | None = None
    ) -> list[Outcome[T]]:
        """Return the outcome of every worker, by rank; their errors are not raised.

        `on_start` gets the run's stage before any worker runs.
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
                stage.scheduler.interrupt()
                stage.scheduler.begin()
                raise
            self._play(stage)
        return [Outcome(life.rank, life.result, life.error, life.is_crashed, life.seconds) for life in stage.lives]

    def _play(self, stage: Stage) -> None:
        try:
            stage.scheduler.begin()  # workers run from here on, so an interrupt may occur before this returns
            while not stage.scheduler.finished.wait(LOOK_SECONDS):
                pass  # a signal just before an endless wait would be noticed only after it
        except KeyboardInterrupt:
            stage.scheduler.interrupt()
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
            resumed=self._resumed,
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
    generators = Generators(0) if is_needed else None
    if generators is not None:
        generators.save()
    try:
        yield
    finally:
        if generators is not None:
            generators.load()


WHOLE_STEP = 1 - 1e-6
"""Sum of shares at which a step counts as computed."""


class VirtualClock:
    """See `contracts.Clock`. Time passes only while the worker sleeps, waits or calls `compute`."""

    def __init__(self, scheduler: Scheduler, rank: int, compute: ComputeModel) -> None:
        self._scheduler = scheduler
        self._rank = rank
        self._compute = compute
        self._step = 0
        self._share = 0.0
        self._step_seconds = 0.0

    def now(self) -> float:
        """Return seconds since the start of the world."""
        return self._scheduler.now

    def sleep(self, seconds: float) -> None:
        if not (seconds >= 0 and math.isfinite(seconds)):
            raise ConfigurationError(f"a worker sleeps for a finite number of seconds from 0 on, not {seconds!r}")
        self._scheduler.sleep(seconds)

    def pause(self) -> None:
        self._scheduler.pause()

    def compute(self, share: float) -> None:
        """Let `share` of this step's modelled time pass; a new step begins when the shares have reached 1."""
        if not 0 <= share <= 1:
            raise ConfigurationError(f"a share of a step's compute time is from 0 to 1, not {share!r}")
        if self._share == 0.0:
            self._step_seconds = self._compute(self._rank, self._step)
        self._share += share
        if self._share >= WHOLE_STEP:
            self._share = 0.0
            self._step += 1
        self.sleep(share * self._step_seconds)
