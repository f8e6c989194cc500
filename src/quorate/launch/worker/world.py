"""`World`: what a training script sees of the workers it is one of."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from quorate.core.axes import axes_for
from quorate.core.contracts import Wire, Work
from quorate.core.errors import ConfigurationError, PeerFailed, WireTimeout, ranks_in_words
from quorate.data.context import data_context
from quorate.gossip.requests import Answer, Requests
from quorate.means.equal_replicas import widened
from quorate.observe.step_times import timing
from quorate.records.rows import Evaluate
from quorate.sharding.mesh import Meshes, mesh_of
from quorate.train.early_end import is_over, stop_all
from quorate.train.pauses import (
    agree_on_buffers,
    at_the_mean,
    at_the_own,
    backward_is_local,
    come_back,
    differ,
    go_away,
    pause,
    waiting,
)
from quorate.train.serving import serves_only
from quorate.train.wrappers import remember_wrappers
from quorate.wire.current import Place
from quorate.wire.exchange import sum_in_order
from quorate.wire.failure import ended
from quorate.wire.survivors import Survivors, survivors

T = TypeVar("T")
_SOON = 0.02
"""Seconds in which the others arrive if nothing is wrong."""
_SERVE_EVERY = 1.5
"""Seconds; longer than a wait needs to notice that a worker has ended, or called something else."""
_LOOK_EVERY = 0.25
_DONE, _FIRST = "requests/done", "first_does"

_LENGTH = 8
"""Bytes of a length."""


class _Held:
    """The requests of one place, once there are any."""

    requests: Requests | None = None


class World:
    """The workers of one run, seen from one of them: `rank` of `size`, computing on `device`.

    Its calls have an order of their own, apart from training: every worker makes the same ones.
    """

    def __init__(self, place: Place, device: torch.device) -> None:
        remember_wrappers()
        self._place = place
        data_context(place).is_over = partial(is_over, place)
        wire = self.wire = place.wire
        self.device = place.context(Meshes).device = device
        self.rank, self.size = wire.rank, wire.size if serves_only(place) else max(wire.size, wire.rank + 1)
        self._calls = wire.channel("world")
        self._dones = self._firsts = 0

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which prints and saves for all."""
        return self.rank == 0

    @property
    def seed(self) -> int:
        """The seed of the run: that of the launcher, else 0; the same on every worker."""
        return data_context(self._place).seed

    @property
    def replicas_differ(self) -> bool:
        """Whether the workers' models differ between steps (gossip, local steps): then two things can be evaluated."""
        return differ(self._place)

    def mesh(
        self,
        *,
        replicas: int | None = None,
        stages: int | None = None,
        shards: int | None = None,
        tensor: int | None = None,
    ) -> DeviceMesh:
        """All workers as `replicas` of the model times `stages` of a pipeline times `shards` of each times `tensor`
        that compute its layers together: a torch `DeviceMesh` with these axes (`stages` and `tensor` only where they
        are not 1).

        `replicas` may be left out, or else `shards`, and is found; `stages` and `tensor` are 1 unless given. The last
        axis varies fastest: workers along `tensor` have neighbouring ranks, and those of one replica follow one
        another. Every worker calls it; the same sizes give the same mesh. Raises `ConfigurationError` for sizes whose
        product is not the number of workers, and for virtual workers.
        """
        return mesh_of(self._place, axes_for(self.wire.size, replicas, shards, tensor, stages), self.device)

    @contextmanager
    def evaluate(self, *, this_worker_only: bool = False, at: Literal["mean", "replica"] = "mean") -> Iterator[None]:
        """A pause of training, for all workers together: replicas and buffers are equal inside.

        Under gossip the model inside the block is the mean of all replicas, and this worker's own replica afterwards;
        under local steps every replica becomes the mean and stays so. With `at="replica"` the model inside is this
        worker's own replica as its newest step left it; buffers are not synchronized then.

        The block begins when every worker has called `evaluate`; workers that come early take part in the others' means
        with weight 0. The time in the block is not counted as training time. Gradients are not switched off: a backward
        pass inside (an attack, a saliency map) is this worker's own, and `.grad` is what it leaves there.

        With `this_worker_only` the other workers keep training. Strategies that do not wait for
        every worker allow it, and this worker leaves the block at the round the others have reached; others refuse it.
        """
        place = self._place
        if at not in ("mean", "replica"):
            raise ConfigurationError(f'at="{at}" is unknown; known: mean, replica')
        if not isinstance(this_worker_only, bool):
            raise ConfigurationError(f"this_worker_only must be True or False, not {this_worker_only!r}")
        if this_worker_only:
            go_away(place)
        else:
            pause(place)
        is_mean = at == "mean" and not this_worker_only
        if is_mean:
            agree_on_buffers(place)
        begin = self.wire.clock.now()
        data_context(place).is_evaluating = True
        try:
            shown = at_the_mean(place) if is_mean else nullcontext() if this_worker_only else at_the_own(place)
            with shown, backward_is_local(place):
                yield
        finally:
            data_context(place).is_evaluating = False
            if this_worker_only:
                come_back(place)
            self._evaluated(begin)

    def stop(self, reason: str = "") -> None:
        """End the training loops of all workers, called on any of them: loaders give no more batches, and `stopped` is
        True.

        Under strategies in which all workers exchange in each step, the loops end after the same step; with local steps
        at the next mean of all; under the others as soon as each worker knows (half a second at most). The first worker
        writes `reason` on stderr, once. Raises `ConfigurationError` under a baseline (torch's DDP) of a comparison.
        """
        stop_all(self._place, str(reason))

    @property
    def stopped(self) -> bool:
        """Whether a worker has called `stop`: for loops over a loader of the script's own, after each step."""
        return is_over(self._place)

    @contextmanager
    def first_does(self, *, timeout: float = 6 * 3600.0) -> Iterator[None]:
        """A block that the first worker runs before all others, which wait for it: a download, a cache.

        Every worker calls it. Nothing inside waits for other workers. Raises `PeerFailed` on the others where the first
        one died, has ended or raised in the block, and `WireTimeout` after `timeout` seconds.
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
        recorder, timers, now = timing(self._place).recorder, timing(self._place).timers, self.wire.clock.now()
        for timer in timers:
            timer.set_out_again()
        limit = data_context(self._place).limit
        if limit is not None:
            limit.pause(now - begin)
        if recorder is not None:
            recorder.write(Evaluate(step=timers[0].steps if timers else 0, begin=begin, end=now))

    @overload
    def mean(self, x: Tensor, *, weight: float = 1.0) -> Tensor: ...

    @overload
    def mean(self, x: float, *, weight: float = 1.0) -> float: ...

    def mean(self, x: Tensor | float, *, weight: float = 1.0) -> Tensor | float:
        """The weighted mean of everyone's `x`: the same bits on every worker; a number for a number.

        The mean has no gradient: in a loss it counts as a constant, with one worker as well.

        A tensor keeps its shape; one of integers or booleans gives float32. Weights are counts, or any numbers of
        which not all are 0 (`ConfigurationError`). Cost: everyone's x to everyone, (P - 1) n numbers.
        """
        value, counts = numbers_of(x), weight_of(weight)
        wide = widened(value)
        wide = wide.to(torch.promote_types(wide.dtype, torch.float32))
        own = Weighed.of(wide, counts, self.rank)
        gathered = list(map(Weighed.read, self._wait(self._together.all_gather(own.whole), "mean")))
        other = next((sent for sent in gathered if sent.kind != gathered[0].kind), None)
        if other is not None:
            raise ConfigurationError(
                f"world.mean was given {other.kind} on rank {other.rank} and {gathered[0].kind} on rank "
                f"{gathered[0].rank}; shape and dtype must be the same on all workers"
            )
        values = [sent.like(wide) for sent in gathered]
        total = sum(sent.weight for sent in gathered)
        if total == 0.0:
            raise ConfigurationError("world.mean needs a weight that is not 0 on at least one worker")
        mean = (sum_in_order(values) / total).to(value.dtype)
        return mean.to(value.device) if isinstance(x, Tensor) else mean.item()

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on at least one worker; the same answer on all of them. Every worker calls it.

        Raises `ConfigurationError` for what is neither true nor false. Cost: one number to everyone.
        """
        return any(self._flags(flag, "any"))

    def all(self, flag: bool) -> bool:
        """Whether `flag` is true on every worker; otherwise as `any`."""
        return all(self._flags(flag, "all"))

    def _flags(self, flag: bool, call: str) -> list[bool]:
        try:
            own = torch.tensor([bool(flag)])
        except (TypeError, ValueError, RuntimeError):
            raise ConfigurationError(f"world.{call} takes True or False, not {flag!r}") from None
        return [bool(every) for every in self._wait(self._together.all_gather(own.to(torch.uint8)), call)]

    def gather(self, x: T) -> list[T]:
        """Everyone's `x`, by rank, on every worker: a tensor (shapes may differ), or plain JSON values. Of workers that
        have died, and were outlived, there is none.

        Raises `ConfigurationError` for what is neither. Cost: everyone's x to everyone.
        """
        if isinstance(x, Tensor):
            check_dense(x, "gather")
            gathered = self._wait(self._together.all_gather(x.detach()), "gather")
            return [y.to(x.device) for y in gathered]  # type: ignore[misc]
        try:
            text = json.dumps(x)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"world.gather takes a tensor or plain JSON values; {error}") from error
        carried = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        values: list[Any] = [
            json.loads(bytes(y.tolist())) for y in self._wait(self._together.all_gather(carried), "gather")
        ]
        return values

    @property
    def _together(self) -> Wire | Survivors:
        """The wire of all workers, or the survivors, where a training continues after deaths."""
        left = survivors(self._place)
        return self._calls if left is None else left

    def serve(self, name: str, function: Callable[..., Any]) -> None:
        """Let a thread beside this worker's training answer what others ask under `name`, by calling `function`.

        It takes and returns None, booleans, numbers, text, dense tensors (which come on the CPU), and lists, tuples and
        dicts of these; where it is annotated, what does not fit is refused, to whoever asks. Functions are called one
        at a time, in the order of requests, while the training goes on: what both use is for the script to guard. They
        do not ask others. What was asked before is answered now. Raises `ConfigurationError` for a name that is taken.
        """
        self._requests.serve(name, function)

    def ask(self, rank: int, name: str, /, *args: Any, timeout: float | None = None, **kwargs: Any) -> Answer:
        """Ask worker `rank`, which may be this one, to call what it serves under `name`; returns at once.

        `wait()` of what is returned is the answer. It raises `RequestFailed` where the function did,
        `ConfigurationError` where it does not take these arguments, `PeerFailed` where the worker has died or ended,
        and `WireTimeout` after `timeout` seconds (None: the time limit of the world), also where nothing is served
        under that name. Cost: one message there and one back.
        """
        if rank not in range(self.wire.max_size):
            raise ConfigurationError(f"world.ask was given rank {rank!r}; the ranks are 0 to {self.size - 1}")
        return self._requests.ask(rank, name, args, kwargs, timeout)

    def serve_until_done(self) -> None:
        """Answer requests until every worker has called this, has ended, or has died and was outlived.

        For workers that only serve, and, at the end of their training, for those that serve as well. No time limit: it
        goes on as long as the others do.
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

    def barrier(self) -> None:
        """Return when every worker has called it."""
        self._wait(self._together.barrier(), "barrier")

    def _wait(self, work: Work[T], call: str) -> T:
        """Return the result of `work`; in a long wait no round waits for this worker, and it serves others.

        Otherwise the others could not come: a quorum may need a contribution of this worker.
        """
        for meeting in tuple(data_context(self._place).meetings):
            meeting()
        wire = self.wire
        until = wire.clock.now() + wire.timeout
        with suppress(WireTimeout):
            return work.wait(min(_SOON, wire.timeout))
        with waiting(self._place) as serve:
            while True:
                serve()
                left = until - wire.clock.now()
                try:
                    return work.wait(max(0.0, min(left, _SERVE_EVERY)))
                except WireTimeout as error:
                    if left <= _SERVE_EVERY:
                        late = ranks_in_words(error.ranks)
                        raise WireTimeout(
                            f"rank {self.rank} waited {wire.timeout:g} s for {late} in world.{call}()", error.ranks
                        ) from None

    def __repr__(self) -> str:
        return f"World(rank={self.rank}, size={self.size}, device={str(self.device)!r})"


@dataclass(frozen=True)
class Weighed:
    """`x * weight` of one worker as bytes, with its kind, by which workers compare their arguments."""

    carried: Tensor
    weight: float
    rank: int
    kind: str

    @classmethod
    def of(cls, x: Tensor, weight: float, rank: int) -> Weighed:
        """Return the argument of one worker."""
        carried = (x * weight).cpu().contiguous().reshape(-1).view(torch.uint8)
        return cls(carried, weight, rank, f"{x.dtype} of the shape {tuple(x.shape)}")

    @property
    def whole(self) -> Tensor:
        """All fields in one tensor, so that one gather has them from the same workers."""
        about = json.dumps([self.weight, self.rank, self.kind]).encode()
        tail = torch.frombuffer(bytearray(about), dtype=torch.uint8)
        return torch.cat([self.carried, tail, torch.tensor([len(about)]).view(torch.uint8)])

    @classmethod
    def read(cls, whole: Tensor) -> Weighed:
        """The inverse of `whole`."""
        end = whole.numel() - _LENGTH
        begin = end - int(whole[end:].clone().view(torch.int64))
        return cls(whole[:begin], *json.loads(bytes(whole[begin:end].tolist())))

    def like(self, x: Tensor) -> Tensor:
        """The numbers, as those of `x` are laid out."""
        return self.carried.clone().view(x.dtype).reshape(x.shape)


def numbers_of(x: object) -> Tensor:
    """Return the argument of `world.mean` as a tensor. Raises `ConfigurationError`."""
    if isinstance(x, Tensor):
        check_dense(x, "mean")
        value = x.detach()
        return value if value.is_floating_point() or value.is_complex() else value.float()
    if not isinstance(x, Real):
        raise ConfigurationError(f"world.mean takes a tensor or a real number, not a {type(x).__name__}")
    return torch.tensor(float(x), dtype=torch.float64)


def weight_of(weight: object) -> float:
    """Return the weight as a number. Raises `ConfigurationError` for anything else."""
    number = weight.item() if isinstance(weight, Tensor) and weight.numel() == 1 else weight
    if not isinstance(number, Real) or not math.isfinite(number):
        raise ConfigurationError(f"the weight of world.mean must be a finite number, not {weight!r}")
    return float(number)


def check_dense(x: Tensor, call: str) -> None:
    """Raise `ConfigurationError` for a tensor that cannot be sent."""
    if x.layout is not torch.strided or x.is_meta:
        kind = "one on the meta device" if x.is_meta else f"one of the layout {x.layout}"
        raise ConfigurationError(f"world.{call} takes dense tensors with values, not {kind}")
