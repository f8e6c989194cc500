"""`World`: what a training script sees of the workers it is one of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Literal

import torch
from torch.distributed.device_mesh import DeviceMesh

from quorate.core.axes import axes_for
from quorate.core.errors import ConfigurationError, PeerFailed, WireTimeout
from quorate.data.context import DataContext
from quorate.gossip.requests import Answer, Requests
from quorate.launch.worker.collectives import Collectives
from quorate.observe.ends import Ends
from quorate.observe.step_times import Timing
from quorate.observe.stopping import Stop
from quorate.records.rows import Evaluate
from quorate.sharding.mesh import Meshes
from quorate.train.chosen import Chosen
from quorate.train.loop import loops_of
from quorate.train.pauses import (
    agree_on_buffers,
    at_the_mean,
    at_the_own,
    backward_is_local,
    come_back,
    differ,
    enter_evaluation,
    go_away,
    waiting,
)
from quorate.train.wrappers import remember_wrappers
from quorate.wire.current import Place
from quorate.wire.failure import ended


class EarlyEnd:
    """The end of the loops of all workers before their data ends, as one worker sees it."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def request(self, reason: str) -> None:
        """Let the loops of all workers end. Raises `ConfigurationError` under a baseline, which cannot."""
        chosen = self._place.context(Chosen)
        if chosen.baselines:
            raise ConfigurationError(
                f"{chosen.strategy_name} cannot end all workers at one step after world.stop(); decide with "
                "world.any(...) in each step"
            )
        self._place.context(Ends).stop(self._place, reason)

    def is_over(self) -> bool:
        """Whether this worker's loop is to end: all have learnt it in the same mean, or no mean has everyone."""
        stop = self._place.context(Stop)
        if stop.reason is None:
            self._place.context(Ends).look_unattended(self._place)
        if stop.reason is None or stop.is_over:
            return stop.is_over
        trainings = [loop for loop in loops_of(self._place) if not loop.is_finished]
        return not stop.is_agreed and all(loop.meets_at_pauses for loop in trainings)


_LOOK_EVERY = 0.25
_DONE, _FIRST = "requests/done", "first_does"


class _Held:
    """The requests of one place, once there are any."""

    requests: Requests | None = None


class World(Collectives):
    """The workers of one run, seen from one of them: `rank` of `size`, computing on `device`.

    Every worker makes the calls of its world in the same order, except `stop`, `stopped`, `serve` and `ask`. This order
    is independent of the exchanges of the training.

    Example:
        >>> world = quorate.join()
        >>> device = world.device
        >>> if world.is_first:
        ...     print(f"{world.size} workers")
        1 workers
    """

    def __init__(self, place: Place, device: torch.device, local_rank: int | None = None) -> None:
        """`local_rank` is that of the launcher, if it says so."""
        remember_wrappers()
        super().__init__(place, device)
        self._early_end = place.context(DataContext).early_end = EarlyEnd(place)
        place.context(Meshes).device = device
        self._local_rank = local_rank
        self._dones = self._firsts = 0

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which prints and saves for all."""
        return self.rank == 0

    @property
    def local_rank(self) -> int:
        """The number of this worker on its host, from 0: that of the launcher, or the number of lower ranks there."""
        if self._local_rank is not None:
            return self._local_rank
        host = self.wire.host_of(self.rank)
        return sum(self.wire.host_of(rank) == host for rank in range(self.rank))

    @property
    def seed(self) -> int:
        """The seed of the run, the same on every worker: that of the launcher, or 0."""
        return self._place.context(DataContext).seed

    @property
    def replicas_differ(self) -> bool:
        """Whether the workers' models differ between steps (gossip, local steps); then the mean of all replicas and
        each replica can be evaluated.
        """
        return differ(self._place)

    def mesh(
        self,
        *,
        replicas: int | None = None,
        stages: int | None = None,
        shards: int | None = None,
        tensor: int | None = None,
    ) -> DeviceMesh:
        """Return the workers as a torch `DeviceMesh` of `replicas` x `stages` x `shards` x `tensor`.

        The last axis varies fastest: workers along `tensor` have neighbouring ranks, and those of one replica follow
        one another. Axes `stages` and `tensor` exist only if they are larger than 1. The same sizes return the same
        mesh.

        Args:
            replicas: The number of copies of the model; computed from the other sizes if it is None.
            stages: The number of stages of a pipeline; default: 1.
            shards: The number of shards of each stage; computed from the other sizes if only it is None.
            tensor: The number of workers that compute layers together; default: 1.

        Returns:
            The mesh, over torch's process group of all workers.

        Raises:
            ConfigurationError: The product of the sizes is not the number of workers, or workers are virtual.

        Example:
            >>> world.mesh(replicas=1).mesh_dim_names
            ('replicas', 'shards')
        """
        return self._place.context(Meshes).mesh(
            self.wire, axes_for(self.wire.size, replicas, shards, tensor, stages), self.device
        )

    @contextmanager
    def evaluate(self, *, this_worker_only: bool = False, at: Literal["mean", "replica"] = "mean") -> Iterator[None]:
        """Pause the training of all workers for a block in which their replicas and buffers are equal.

        The block begins when every worker has called `evaluate`; workers that arrive early take part in the others'
        means with weight 0. Its time does not count as training time. Gradients are not switched off: a backward pass
        inside is local to this worker, and `.grad` keeps its result.

        Args:
            this_worker_only: Whether the other workers keep training. Strategies that do not wait for every worker
                allow it; this worker leaves the block at the round that the others have reached.
            at: "mean": under gossip the model in the block is the mean of all replicas, and this worker's own replica
                afterwards. Under local steps every replica becomes the mean and stays so. "replica": the model in the
                block is this worker's own replica after its newest step; buffers are not synchronized.

        Raises:
            ConfigurationError: `at` is unknown, or the strategy does not allow `this_worker_only`. On all workers if
                one has made further steps and ended its training without this evaluation.

        Example:
            >>> with world.evaluate(), torch.no_grad():
            ...     accuracy = world.mean((model(inputs).argmax(1) == targets).float().mean())
        """
        place = self._place
        if at not in ("mean", "replica"):
            raise ConfigurationError(f'at="{at}" is unknown; known: mean, replica')
        if not isinstance(this_worker_only, bool):
            raise ConfigurationError(f"this_worker_only must be True or False, not {this_worker_only!r}")
        is_inference = torch.is_inference_mode_enabled()  # the training keeps tensors from a pause
        with torch.inference_mode(False) if is_inference else nullcontext():
            if this_worker_only:
                go_away(place)
            else:
                enter_evaluation(place)
            is_mean = at == "mean" and not this_worker_only
            if is_mean:
                agree_on_buffers(place)
            begin = self.wire.clock.now()
            place.context(DataContext).is_evaluating = True
            try:
                shown = at_the_mean(place) if is_mean else nullcontext() if this_worker_only else at_the_own(place)
                with shown, backward_is_local(place), torch.inference_mode() if is_inference else nullcontext():
                    yield
            finally:
                place.context(DataContext).is_evaluating = False
                if this_worker_only:
                    come_back(place)
                self._evaluated(begin)

    def stop(self, reason: str = "") -> None:
        """End the training loops of all workers: loaders yield no more batches, and `stopped` becomes True.

        Any worker may call it. Under strategies in which all workers exchange in each step, loops end after the same
        step. With local steps they end at the next mean of all workers; under the others as soon as each worker knows
        (after half a second at most).

        Args:
            reason: A sentence that the first worker writes to stderr, once.

        Raises:
            ConfigurationError: The run is a baseline (torch's DDP) of a comparison.

        Example:
            >>> if float(loss) < 1e-3:
            ...     world.stop("the loss is small enough")
        """
        self._early_end.request(str(reason))

    @property
    def stopped(self) -> bool:
        """Whether a worker has called `stop`; check it after each step in loops over a loader of your own."""
        return self._early_end.is_over()

    @contextmanager
    def first_does(self, *, timeout: float = 6 * 3600.0) -> Iterator[None]:
        """Run a block on the first worker before all others, which wait for it: a download, a cache.

        Every worker runs the block, the first one alone. Nothing inside may wait for other workers.

        Args:
            timeout: The limit of the others' wait, in seconds.

        Raises:
            PeerFailed: On the other workers, if the first one died, ended, or raised in the block.
            WireTimeout: The first worker did not leave the block in time.

        Example:
            >>> with world.first_does():
            ...     path.touch()  # download the data
        """
        self._firsts += 1
        first, board, key = self.wire.alive[0], self.wire.board, f"{_FIRST}/{self._firsts}"
        if self.rank != first:
            self._wait_for_first(first, key, timeout)
            yield
            return
        try:
            yield
        except BaseException:
            board.set(key, b"raised")
            raise
        board.set(key, b"done")

    def _wait_for_first(self, first: int, key: str, timeout: float) -> None:
        board, until = self.wire.board, self.wire.clock.now() + timeout
        with waiting(self._place) as serve:
            while (outcome := board.get(key)) is None:
                if first in self.wire.dead or board.get(ended(first)):
                    raise PeerFailed(
                        f"rank {first} has ended without world.first_does(), which others wait for", (first,)
                    )
                left = until - self.wire.clock.now()
                if left <= 0:
                    raise WireTimeout(
                        f"rank {self.rank} waited {timeout:g} s for rank {first} in world.first_does()", (first,)
                    )
                with suppress(WireTimeout):
                    board.wait([key], min(left, _LOOK_EVERY))
                serve()
        if outcome != b"done":
            raise PeerFailed(f"rank {first} raised an error in world.first_does()", (first,))

    def _evaluated(self, begin: float) -> None:
        recorder, timers, now = (
            self._place.context(Timing).recorder,
            self._place.context(Timing).timers,
            self.wire.clock.now(),
        )
        for timer in timers:
            timer.set_out_again()
        limit = self._place.context(DataContext).limit
        if limit is not None:
            limit.pause(now - begin)
        if recorder is not None:
            recorder.write(Evaluate(step=timers[0].steps if timers else 0, begin=begin, end=now))

    def serve(self, name: str, function: Callable[..., Any]) -> None:
        """Let other workers call `function` under `name`; a thread beside this worker's training answers them.

        Functions are called one at a time, in the order of requests, while the training continues; protect data that
        both use. They do not ask other workers. Requests that arrived earlier are answered now.

        Args:
            name: The name of the function for `ask`.
            function: Takes and returns None, booleans, numbers, text, dense tensors (on the CPU), and lists, tuples and
                dicts of these. Arguments and results are checked against its annotations.

        Raises:
            ConfigurationError: The name is taken.

        Example:
            >>> world.serve("double", lambda x: 2 * x)
        """
        self._requests.serve(name, function)

    def ask(self, rank: int, name: str, /, *args: Any, timeout: float | None = None, **kwargs: Any) -> Answer:
        """Ask worker `rank`, which may be this one, to call the function that it serves as `name`; return at once.

        Args:
            rank: The rank of the worker.
            name: The name under which it serves the function.
            args, kwargs: The arguments of the function.
            timeout: The limit of the wait for the answer, in seconds; None: the time limit of the world.

        Returns:
            An object whose `wait()` returns the answer. `wait` raises `RequestFailed` if the function raised, and
            `ConfigurationError` if it does not take these arguments. It raises `PeerFailed` if the worker has died or
            ended, and `WireTimeout` after `timeout`, also if nothing is served under that name.

        Raises:
            ConfigurationError: There is no such rank.

        Cost: one message there and one back.

        Example:
            >>> world.serve("triple", lambda x: 3 * x)
            >>> world.ask(0, "triple", 5).wait()
            15
        """
        if rank not in range(self.wire.max_size):
            raise ConfigurationError(f"world.ask was given rank {rank!r}; the ranks are 0 to {self.size - 1}")
        return self._requests.ask(rank, name, args, kwargs, timeout)

    def serve_until_done(self) -> None:
        """Answer requests until every worker has called this, has ended, or has died while the others continue.

        Call it on workers that only serve, and at the end of the training on those that serve as well. It has no time
        limit.
        """
        place = self._place
        self._dones, requests, board = self._dones + 1, self._requests, self.wire.board
        keys = [f"{_DONE}/{self._dones}/{rank}" for rank in range(self.size)]
        board.set(keys[self.rank], b"done")
        with waiting(place) as serve:
            for rank, key in enumerate(keys):
                while not (rank in self.wire.dead or board.get(key) or board.get(ended(rank))):
                    with suppress(WireTimeout):
                        board.wait([key], _LOOK_EVERY)
                    requests.check()
                    serve()

    @property
    def _requests(self) -> Requests:
        held = self._place.context(_Held)
        if held.requests is None:
            held.requests = Requests(self.wire.channel("requests"))
            self._place.leaving.append(held.requests.close)
        return held.requests

    def __repr__(self) -> str:
        return f"World(rank={self.rank}, size={self.size}, device={str(self.device)!r})"
