"""`World`: what a training script sees of the workers it is one of."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor

from quorate.agreement.equal_replicas import widened
from quorate.core.contracts import Wire, Work
from quorate.core.errors import ConfigurationError, WireTimeout, ranks_in_words
from quorate.core.rows import Evaluate
from quorate.data.context import data_context
from quorate.observe.step_times import timing
from quorate.train.pauses import agree_on_buffers, at_the_mean, at_the_own, come_back, differ, go_away, pause, waiting
from quorate.train.wrappers import remember_wrappers
from quorate.wire.current import Place
from quorate.wire.exchange import sum_in_order
from quorate.wire.survivors import Survivors, survivors

T = TypeVar("T")
_SOON = 0.02
"""Seconds in which the others come where nothing is wrong."""
_SERVE_EVERY = 1.5
"""Seconds; longer than a wait needs to find out who has ended, or called something else."""
_LENGTH = 8
"""Bytes of a length."""


@dataclass(frozen=True)
class Weighed:
    """`x * weight` of one worker as bytes, with what is needed to tell whether others give the same kind of thing."""

    carried: Tensor
    weight: float
    rank: int
    kind: str

    @classmethod
    def of(cls, x: Tensor, weight: float, rank: int) -> Weighed:
        """What one worker gives."""
        carried = (x * weight).cpu().contiguous().reshape(-1).view(torch.uint8)
        return cls(carried, weight, rank, f"{x.dtype} of the shape {tuple(x.shape)}")

    @property
    def whole(self) -> Tensor:
        """All of it in one tensor: what is gathered together is of the same workers."""
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


def _numbers_of(x: object) -> Tensor:
    if isinstance(x, Tensor):
        _check_dense(x, "mean")
        value = x.detach()
        return value if value.is_floating_point() or value.is_complex() else value.float()
    if not isinstance(x, Real):
        raise ConfigurationError(f"world.mean takes a tensor or a real number, not a {type(x).__name__}")
    return torch.tensor(float(x), dtype=torch.float64)


def _weight_of(weight: object) -> float:
    number = weight.item() if isinstance(weight, Tensor) and weight.numel() == 1 else weight
    if not isinstance(number, Real) or not math.isfinite(number):
        raise ConfigurationError(f"the weight of world.mean is a finite number, not {weight!r}")
    return float(number)


def _check_dense(x: Tensor, call: str) -> None:
    if x.layout is not torch.strided or x.is_meta:
        kind = "one on the meta device" if x.is_meta else f"one of the layout {x.layout}"
        raise ConfigurationError(f"world.{call} takes dense tensors that have numbers, not {kind}")


class World:
    """The workers of one run, seen from one of them: `rank` of `size`, computing on `device`.

    Its calls have an order of their own, apart from training: every worker makes the same ones.
    """

    def __init__(self, place: Place, device: torch.device) -> None:
        remember_wrappers()
        self._place = place
        wire = self.wire = place.wire
        self.device = device
        self.rank, self.size = wire.rank, max(wire.size, wire.rank + 1)
        self._calls = wire.channel("world")

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which prints and saves for all."""
        return self.rank == 0

    @property
    def seed(self) -> int:
        """The seed of the run: what was given to the launcher, else 0; the same on every worker."""
        return data_context(self._place).seed

    @property
    def replicas_differ(self) -> bool:
        """Whether the workers' models differ between steps (gossip, local steps): then two things can be evaluated."""
        return differ(self._place)

    @contextmanager
    def evaluate(self, *, alone: bool = False, at: Literal["mean", "replica"] = "mean") -> Iterator[None]:
        """A pause of training, for all workers together: replicas and buffers are equal inside.

        Under gossip the model is the mean of all inside, and this worker's own again afterwards; under local steps all
        become the mean, and stay it. With `at="replica"` the model is inside what this worker came with: its own
        replica as its newest step left it; no buffers are agreed on then.

        Returns into the block when every worker has come; those that come early take part in the others' means
        without weight. What the block takes is no training time. Gradients are not switched off.

        With `alone` only this worker pauses, with its replica as it is. Under strategies that do not wait, nobody waits
        for it meanwhile, and it comes out of the block where the others are by then; under others it is refused.
        """
        place = self._place
        if at not in ("mean", "replica"):
            raise ConfigurationError(f'at="{at}" is unknown; known: mean, replica')
        if not isinstance(alone, bool):
            raise ConfigurationError(f"alone is True or False, not {alone!r}")
        if alone:
            go_away(place)
        else:
            pause(place)
        is_mean = at == "mean" and not alone
        if is_mean:
            agree_on_buffers(place)
        begin = self.wire.clock.now()
        data_context(place).is_evaluating = True
        try:
            with at_the_mean(place) if is_mean else nullcontext() if alone else at_the_own(place):
                yield
        finally:
            data_context(place).is_evaluating = False
            if alone:
                come_back(place)
            self._evaluated(begin)

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

        A tensor keeps its shape; one of integers or booleans gives float32. Weights are counts, or any numbers of
        which not all are 0 (`ConfigurationError`). Cost: everyone's x to everyone, (P - 1) n numbers.
        """
        value, counts = _numbers_of(x), _weight_of(weight)
        wide = widened(value)
        wide = wide.to(torch.promote_types(wide.dtype, torch.float32))
        mine = Weighed.of(wide, counts, self.rank)
        found = list(map(Weighed.read, self._wait(self._together.all_gather(mine.whole), "mean")))
        other = next((one for one in found if one.kind != found[0].kind), None)
        if other is not None:
            raise ConfigurationError(
                f"world.mean was given {other.kind} on rank {other.rank} and {found[0].kind} on rank {found[0].rank}; "
                "it takes one shape and dtype on all workers"
            )
        values = [one.like(wide) for one in found]
        total = sum(one.weight for one in found)
        if total == 0.0:
            raise ConfigurationError("world.mean needs a weight that is not 0 on at least one worker")
        mean = (sum_in_order(values) / total).to(value.dtype)
        return mean.to(value.device) if isinstance(x, Tensor) else mean.item()

    def gather(self, x: T) -> list[T]:
        """Everyone's `x`, by rank, on every worker: a tensor (shapes may differ), or plain JSON values. Of workers that
        have died, and were outlived, there is none.

        Raises `ConfigurationError` for what is neither. Cost: everyone's x to everyone.
        """
        if isinstance(x, Tensor):
            _check_dense(x, "gather")
            gathered = self._wait(self._together.all_gather(x.detach()), "gather")
            return [y.to(x.device) for y in gathered]  # type: ignore[misc]
        try:
            text = json.dumps(x)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"world.gather takes a tensor or plain JSON values; {error}") from error
        carried = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        found: list[Any] = [
            json.loads(bytes(y.tolist())) for y in self._wait(self._together.all_gather(carried), "gather")
        ]
        return found

    @property
    def _together(self) -> Wire | Survivors:
        """What all workers call, or those that are left, where a training outlives the others."""
        left = survivors(self._place)
        return self._calls if left is None else left

    def barrier(self) -> None:
        """Return when every worker has called it."""
        self._wait(self._together.barrier(), "barrier")

    def _wait(self, work: Work[T], what: str) -> T:
        """What comes of `work`; where that takes long, no round waits for this worker, and it serves others.

        Otherwise those that are to come could not: a quorum may need what this worker will not give before.
        """
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
                            f"rank {self.rank} waited {wire.timeout:g} s for {late} in world.{what}()", error.ranks
                        ) from None

    def __repr__(self) -> str:
        return f"World(rank={self.rank}, size={self.size}, device={str(self.device)!r})"
