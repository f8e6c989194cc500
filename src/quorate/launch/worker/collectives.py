"""The calls of `World` that all workers make together: sums, means, gathers, broadcasts."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any, TypeVar, cast, overload

import torch
from torch import Tensor

from quorate.checkpoint.encoding import as_bytes, from_bytes
from quorate.core.contracts import Wire, Work
from quorate.core.errors import ConfigurationError, PeerFailed, WireTimeout, ranks_in_words
from quorate.core.servers import OwnServers
from quorate.data.context import DataContext
from quorate.means.equal_replicas import widened
from quorate.observe.ends import Ends
from quorate.train.pauses import waiting
from quorate.wire.current import Place
from quorate.wire.exchange import sum_in_order
from quorate.wire.survivors import DeathTolerance, Survivors

T = TypeVar("T")
_SOON = 0.02
"""Seconds in which the others arrive if nothing is wrong."""
_SERVE_EVERY = 1.5
"""Seconds; longer than a wait needs to notice that a worker has ended, or called something else."""
_LENGTH = 8
"""Bytes of a length."""


class Collectives:
    """Calls that every worker makes in the same order, which is independent of the exchanges of the training."""

    def __init__(self, place: Place, device: torch.device) -> None:
        self._place, self.wire, self.device = place, place.wire, device
        wire = place.wire
        self.rank, self.size = (
            wire.rank,
            wire.size if place.context(OwnServers).has(wire.rank) else max(wire.size, wire.rank + 1),
        )
        self._calls = wire.channel("world")

    @overload
    def mean(self, x: Tensor, *, weight: float = 1.0) -> Tensor: ...

    @overload
    def mean(self, x: float, *, weight: float = 1.0) -> float: ...

    @overload
    def mean(self, x: Mapping[str, float], *, weight: float = 1.0) -> dict[str, float]: ...

    def mean(
        self, x: Tensor | float | Mapping[str, float], *, weight: float = 1.0
    ) -> Tensor | float | dict[str, float]:
        """Return the weighted mean of `x` over all workers: the same bits on every worker.

        Args:
            x: A number, a dense tensor of the same shape and dtype on every worker, or a dict of numbers (metrics)
                with the same keys on every worker.
            weight: The weight of this worker, such as its number of examples; it may be 0, though not on all workers.

        Returns:
            A float for a number, a dict of floats for a dict; for a tensor one of the same shape, dtype and device
            (float32 for integers and booleans). It has no gradient, with one worker either: in a loss it is a constant.

        Raises:
            ConfigurationError: Shapes, dtypes or keys differ, or all weights are 0; on every worker.
            WireTimeout: A worker did not call it within the time limit of the world; the error names the worker.

        Cost: P - 1 messages of n numbers from each of P workers.

        Example:
            >>> world.mean(0.5, weight=32)
            0.5
            >>> world.mean({"loss": 2.0, "accuracy": 0.5}, weight=32)
            {'loss': 2.0, 'accuracy': 0.5}
        """
        if isinstance(x, Mapping):
            keys = sorted(x)
            numbers = [numbers_in(x[key], "mean") for key in keys]
            if any(value.numel() != 1 for value in numbers):
                raise ConfigurationError("world.mean takes a dict of numbers; give each tensor a call of its own")
            means = self._mean(torch.tensor([float(value) for value in numbers], dtype=torch.float64), weight, keys)
            by_key = dict(zip(keys, means.tolist(), strict=True))
            return {key: by_key[key] for key in x}
        mean = self._mean(numbers_in(x, "mean"), weight)
        return mean.to(x.device) if isinstance(x, Tensor) else mean.item()

    def _mean(self, value: Tensor, weight: float, keys: Sequence[str] = ()) -> Tensor:
        factor = weight_in(weight)
        value = value if value.is_floating_point() or value.is_complex() else value.float()
        wide = widened(value)
        wide = wide.to(torch.promote_types(wide.dtype, torch.float32))
        vectors, weights = self._numbers(wide * factor, "mean", factor, keys)
        if sum(weights) == 0.0:
            raise ConfigurationError("world.mean needs a weight that is not 0 on at least one worker")
        return (sum_in_order(vectors) / sum(weights)).to(value.dtype)

    @overload
    def sum(self, x: Tensor) -> Tensor: ...

    @overload
    def sum(self, x: float) -> float: ...

    def sum(self, x: Tensor | float) -> Tensor | float:
        """Return the sum of `x` over all workers: the same bits on every worker.

        Args:
            x: A number, or a dense tensor of the same shape and dtype on every worker.

        Returns: A number for a number (an integer for an integer, if the sum is whole), or a tensor of the same shape,
            dtype and device. For booleans it is the count of `True` (int64). Numbers are added in float64, tensors
            smaller than float32 in float32. It has no gradient.

        Raises: As `mean`. Cost: as that of `mean`.

        Example:
            >>> world.sum(3)
            3
        """
        value = numbers_in(x, "sum")
        value = value.long() if value.dtype == torch.bool else value
        vectors, _ = self._numbers(widened(value), "sum")
        return like(x, sum_in_order(vectors).to(value.dtype))

    @overload
    def max(self, x: Tensor) -> Tensor: ...

    @overload
    def max(self, x: float) -> float: ...

    def max(self, x: Tensor | float) -> Tensor | float:
        """Return the largest `x` of all workers, for a tensor at each place; NaN where one is NaN.

        Args:
            x: A number, or a dense tensor of real numbers, of the same shape and dtype on every worker.

        Returns:
            A number for a number, or a tensor of the same shape, dtype and device. It has no gradient.

        Raises: As `mean`, and `ConfigurationError` for complex numbers. Cost: as that of `mean`.

        Example:
            >>> world.max(torch.tensor([1.0, 2.0]))
            tensor([1., 2.])
        """
        value = numbers_in(x, "max")
        if value.is_complex():
            raise ConfigurationError(f"world.max takes real numbers, not {value.dtype}")
        vectors, _ = self._numbers(widened(value), "max")
        return like(x, functools.reduce(torch.maximum, vectors).to(value.dtype))

    def _numbers(
        self, x: Tensor, call: str, weight: float = 1.0, keys: Sequence[str] = ()
    ) -> tuple[list[Tensor], list[float]]:
        """Return the `x` and the weights of all workers, by rank."""
        kind = f"a dict with the keys {', '.join(keys)}" if keys else f"{x.dtype} of the shape {tuple(x.shape)}"
        own = packed(raw(x), [weight, self.rank, kind])
        gathered = [unpacked(sent) for sent in self._wait(self._together.all_gather(own), call)]
        _, (_, first_rank, first_kind) = gathered[0]
        for _, (_, rank, other_kind) in gathered:
            if other_kind != first_kind:
                raise ConfigurationError(
                    f"world.{call} was given {other_kind} on rank {rank} and {first_kind} on rank {first_rank}; shape "
                    "and dtype, or keys, must be the same on all workers"
                )
        vectors = [payload.clone().view(x.dtype).reshape(x.shape) for payload, _ in gathered]
        return vectors, [weight for _, (weight, _, _) in gathered]

    def broadcast(self, x: T, source: int = 0) -> T:
        """Return the `x` of the worker `source`, on every worker.

        Args:
            x: On `source` a dense tensor, a number, text, None, or lists, tuples and dicts of these; elsewhere any
                value, which is not used.
            source: The rank of the worker whose value is returned; the same on every worker.

        Returns:
            The value, a copy on `source` too. A tensor is on the device of this worker's `x` if that is a tensor, or on
            `world.device`; tensors inside lists and dicts are on the CPU. A server, and a newcomer before it trains,
            get their own `x`.

        Raises:
            ConfigurationError: The value cannot be sent, or workers name different sources.
            PeerFailed: `source` has died, and the others continue without it.
            WireTimeout: A worker did not call it within the time limit of the world; the error names the worker.

        Cost: P - 1 messages of the size of `x` from `source`, and P - 1 short ones from each other worker.

        Example:
            >>> world.broadcast("name of the run" if world.is_first else None)
            'name of the run'
        """
        if source not in range(self.wire.max_size):
            raise ConfigurationError(f"world.broadcast was given source={source!r}; the ranks are 0 to {self.size - 1}")
        payload, kind = torch.empty(0, dtype=torch.uint8), None
        if self.rank == source and isinstance(x, Tensor):
            check_dense(x, "broadcast")
            payload, kind = raw(x), [str(x.dtype).removeprefix("torch."), list(x.shape)]
        elif self.rank == source:
            payload = object_bytes(x, "broadcast")
        own = packed(payload, [source, self.rank, kind])
        gathered = [unpacked(sent) for sent in self._wait(self._together.all_gather(own), "broadcast")]
        for _, (other_source, rank, _) in gathered:
            if other_source != source:
                raise ConfigurationError(
                    f"world.broadcast was given source={source} on rank {self.rank} and source={other_source} on rank "
                    f"{rank}; every worker names the same source"
                )
        sent = next(((payload, kind) for payload, (_, rank, kind) in gathered if rank == source), None)
        if (
            sent is None
            and len(gathered) == 1
            and (self.wire.is_newcomer or self._place.context(OwnServers).has(self.rank))
        ):
            return x
        if sent is None:
            raise PeerFailed(f"rank {source}, the source of world.broadcast(), has ended", (source,))
        payload, kind = sent
        value: Any
        if kind is None:
            value = from_bytes(payload)
        else:
            dtype, shape = kind
            value = payload.clone().view(getattr(torch, dtype)).reshape(shape)
            value = value.to(x.device if isinstance(x, Tensor) else self.device)
        return cast("T", value)

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on at least one worker; the same answer on all of them.

        Args:
            flag: True or False, or a tensor of one number.

        Raises:
            ConfigurationError: `flag` is neither true nor false.

        Cost: one message to every other worker.

        Example:
            >>> world.any(False)
            False
        """
        return any(self._flags(flag, "any"))

    def all(self, flag: bool) -> bool:
        """Return whether `flag` is true on every worker; the same answer on all of them.

        Args: As `any`. Raises: As `any`.

        Example:
            >>> world.all(True)
            True
        """
        return all(self._flags(flag, "all"))

    def _flags(self, flag: bool, call: str) -> list[bool]:
        try:
            own = torch.tensor([bool(flag)])
        except (TypeError, ValueError, RuntimeError):
            raise ConfigurationError(f"world.{call} takes True or False, not {flag!r}") from None
        return [bool(every) for every in self._wait(self._together.all_gather(own.to(torch.uint8)), call)]

    def gather(self, x: T) -> list[T]:
        """Return the `x` of all workers, by rank, on every worker.

        Args:
            x: A dense tensor (shapes may differ between workers), or on every worker a number, text, None, or lists,
                tuples and dicts of these and of tensors. Nothing is pickled.

        Returns:
            A list in order of rank. Workers that have died while the others continued are left out.

        Raises:
            ConfigurationError: `x` holds something else.

        Cost: P - 1 messages of the size of `x` from each of P workers.

        Example:
            >>> world.gather({"rank": world.rank})
            [{'rank': 0}]
        """
        if isinstance(x, Tensor):
            check_dense(x, "gather")
            gathered = self._wait(self._together.all_gather(x.detach()), "gather")
            return [y.to(x.device) for y in gathered]  # type: ignore[misc]
        sent = self._wait(self._together.all_gather(object_bytes(x, "gather")), "gather")
        values: list[Any] = list(map(from_bytes, sent))
        return values

    @property
    def _together(self) -> Wire | Survivors:
        """The wire of all workers, or the survivors, where a training continues after deaths."""
        left = self._place.context(DeathTolerance).survivors
        return self._calls if left is None else left

    def barrier(self) -> None:
        """Wait until every worker has called it. Raises `WireTimeout`, which names the workers that did not."""
        self._wait(self._together.barrier(), "barrier")

    def _wait(self, work: Work[T], call: str) -> T:
        return result_of(work, self._place, f"world.{call}()")


def result_of(work: Work[T], place: Place, call: str) -> T:
    """Return the result of `work`; in a long wait no round waits for this worker, and it serves others.

    Otherwise the others could not come: a quorum may need a contribution of this worker. `call` is the script's. Raises
    `ConfigurationError` if a worker cannot come any more: see `Ends.that_cannot_come`.
    """
    for meeting in tuple(place.context(DataContext).meetings):
        meeting()
    wire = place.wire
    until = wire.clock.now() + wire.timeout
    with suppress(WireTimeout):
        return work.wait(min(_SOON, wire.timeout))
    lost: dict[int, str] = {}
    with waiting(place) as serve:
        while True:
            serve()
            left = until - wire.clock.now()
            try:
                return work.wait(max(0.0, min(left, _SERVE_EVERY)))
            except WireTimeout as error:
                if left <= _SERVE_EVERY:
                    late = ranks_in_words(error.ranks)
                    raise WireTimeout(
                        f"rank {wire.rank} waited {wire.timeout:g} s for {late} in {call}", error.ranks
                    ) from None
                for rank in error.ranks:
                    if rank in lost:
                        raise ConfigurationError(lost[rank]) from None
                lost = place.context(Ends).that_cannot_come(place, error.ranks, call)


def packed(payload: Tensor, about: object) -> Tensor:
    """Return bytes and a plain JSON value in one tensor, so that one gather has both from the same workers."""
    text = json.dumps(about).encode()
    tail = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return torch.cat([payload, tail, torch.tensor([len(text)]).view(torch.uint8)])


def unpacked(whole: Tensor) -> tuple[Tensor, Any]:
    """Return the arguments of `packed`."""
    end = whole.numel() - _LENGTH
    begin = end - int(whole[end:].clone().view(torch.int64))
    return whole[:begin], json.loads(bytes(whole[begin:end].tolist()))


def raw(x: Tensor) -> Tensor:
    """Return the bytes of `x`, on the CPU."""
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def object_bytes(x: object, call: str) -> Tensor:
    """Return a plain value as bytes. Raises `ConfigurationError` for any other."""
    return as_bytes(x, "the value", f"world.{call} cannot send")


def numbers_in(x: object, call: str) -> Tensor:
    """Return a tensor or a number as a tensor. Raises `ConfigurationError` for any other value."""
    if isinstance(x, Tensor):
        check_dense(x, call)
        return x.detach()
    if not isinstance(x, Real):
        raise ConfigurationError(f"world.{call} takes a tensor or a real number, not a {type(x).__name__}")
    return torch.tensor(float(x), dtype=torch.float64)


def like(x: Tensor | float, result: Tensor) -> Tensor | float:
    """Return `result` as a tensor on the device of `x`, or as a number where `x` is one: whole if both are."""
    if isinstance(x, Tensor):
        return result.to(x.device)
    number = float(result.item())
    return int(number) if isinstance(x, int) and number.is_integer() else number


def weight_in(weight: object) -> float:
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
