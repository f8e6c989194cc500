"""Messages between workers that compute layers together: activations, and their gradients.

Each function is a step of the calculation in one direction, and its transpose in the other. Sources are Shoeybi et al.
2019 (Megatron-LM, arXiv 1909.08053, section 3: f and g) and, for pieces of the sequence, Korthikanti et al. 2022 (arXiv
2205.05198, section 4.2.2). Sums have the same bits on all workers. Gradients of gradients are not formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh

from quorate.core.contracts import Wire
from quorate.core.draws import mixed
from quorate.sharding.traffic import Traffic
from quorate.wire.cut import WHOLE_BYTES


class Together:
    """The workers that compute one model's layers together, as one of them sees them."""

    def __init__(self, wire: Wire, traffic: Traffic, mesh: DeviceMesh) -> None:
        self.wire, self.traffic, self.mesh = wire, traffic, mesh
        self.rank, self.size = wire.rank, wire.size
        self.layer = ""
        """The one that is being calculated, by its name in the model."""
        self._own_draws: tuple[Tensor, Tensor | None] | None = None
        self._last: tuple[ReferenceType[Tensor], Tensor, bool] | None = None

    def begin(self) -> None:
        """Begin a new call of the model, and forget one that was broken off, or calculated again."""
        self._own_draws = self._last = None

    def meet(self, call: str) -> None:
        """Wait until all workers have reached the same `call`. Raises `Mismatch` where one has reached another."""
        self.values_of_all(f"{call}, in a model that workers compute together", None)

    def values_of_all(self, call: str, value: Any) -> list[Any]:
        """Return the `value`, which is JSON, of every worker. Raises `Mismatch` where one makes another `call`."""
        return self.traffic.wait(self.wire.tell_all(call, value), self.wire.clock)

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over all workers.

        Cost: 2 (T - 1) / T of its bytes sent; (T - 1) of them where it is small. Where T divides its size, pieces are
        exchanged here, without the task of a group's `all_reduce`, unless a backend sums. Either way messages are added
        in the same order.
        """
        if (
            self.size > 2
            and not self.wire.carries(x)
            and x.numel() % self.size == 0
            and x.numel() * x.element_size() > WHOLE_BYTES
        ):
            flat = x.detach().contiguous().view(-1)
            piece = self.traffic.wait(self.wire.reduce_scatter(flat), self.wire.clock)
            each = self.traffic.wait(self.wire.all_gather(piece.contiguous()), self.wire.clock)
            return torch.cat(each).view(x.shape)
        total = x.detach().clone(memory_format=torch.contiguous_format)
        return self.traffic.wait(self.wire.all_reduce(total), self.wire.clock)

    def join(self, x: Tensor, dim: int) -> Tensor:
        """Return all pieces, concatenated along `dim`. Cost: (T - 1) pieces sent."""
        return torch.cat(self.traffic.wait(self.wire.all_gather(x.detach().contiguous()), self.wire.clock), dim)

    def piece(self, x: Tensor, dim: int) -> Tensor:
        """Return this worker's piece of `x` along `dim`."""
        return x.detach().chunk(self.size, dim)[self.rank].contiguous()

    def piece_of_sum(self, x: Tensor, dim: int) -> Tensor:
        """Return this worker's piece of the sum over all workers. Cost: (T - 1) / T of its bytes sent."""
        turned = x.detach().movedim(dim, 0).contiguous()
        piece = self.traffic.wait(self.wire.reduce_scatter(turned), self.wire.clock)
        return piece.view(turned.shape[0] // self.size, *turned.shape[1:]).movedim(0, dim).contiguous()

    def copied(self, x: Tensor, *, is_piece: bool = False) -> Tensor:
        """Return `x`, or with `is_piece` all pieces of the sequence, for a layer that is cut by columns. The gradient
        of `x` is the sum over all workers. Successive layers with the same tensor form that sum once."""
        if self._last is not None and self._last[0]() is x and self._last[2] == torch.is_grad_enabled():
            return self._last[1]
        output = joined_for_parts(x, self, 1) if is_piece else copied(x, self)
        self._last = ref(x), output, torch.is_grad_enabled()
        return output

    def draw_apart(self) -> None:
        """Let random numbers differ between these workers from now on.

        They depend on the state of the generator alone, so that they are the same where torch calculates activations a
        second time.
        """
        if self._own_draws is None:
            seed = int(torch.empty((), dtype=torch.int64).random_())
            has_gpu = torch.cuda.is_initialized()  # which has a generator of its own
            self._own_draws = torch.get_rng_state(), torch.cuda.get_rng_state() if has_gpu else None
            torch.default_generator.manual_seed(mixed(seed, self.rank))
            if has_gpu:
                torch.cuda.manual_seed(mixed(seed, self.rank) >> 1)

    def draw_alike(self) -> None:
        """Let all workers draw the same random numbers again."""
        self._last = None
        if self._own_draws is not None:
            cpu, gpu = self._own_draws
            torch.set_rng_state(cpu)
            if gpu is not None:
                torch.cuda.set_rng_state(gpu)
            self._own_draws = None

    @contextmanager
    def counting(self, layer: str) -> Iterator[None]:
        """Inside, bytes sent are counted for `layer`."""
        sent, traffic = self.traffic.meter.total_out, self.traffic
        try:
            yield
        finally:
            traffic.by_layer[layer] += traffic.meter.total_out - sent


class _Sent(Function):
    """Calls one method of `Together` forward, and another one backward; none where the name is empty."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, together: Together, there: str, back: str, dims: tuple[int, ...]) -> Tensor:
        ctx.how = together, back, dims, together.layer
        if not there:
            return x.view_as(x)
        with together.counting(together.layer):
            return getattr(together, there)(x, *(dims if there != "sum" else ()))  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        together, back, dims, layer = ctx.how
        if not back:
            return gradient, None, None, None, None
        with together.counting(layer):
            return getattr(together, back)(gradient, *(dims if back != "sum" else ())), None, None, None, None


def _sent(x: Tensor, together: Together, there: str, back: str, *dims: int) -> Tensor:
    output: Tensor = _Sent.apply(x, together, there, back, dims)  # type: ignore[no-untyped-call]
    return output


def copied(x: Tensor, together: Together) -> Tensor:
    """Return `x`; backward, the sum (f)."""
    return _sent(x, together, "", "sum")


def summed(x: Tensor, together: Together) -> Tensor:
    """Return the sum; backward, the gradient (g)."""
    return _sent(x, together, "sum", "")


def joined(x: Tensor, together: Together, dim: int) -> Tensor:
    """Return all pieces, used alike on all workers; the gradient of a piece is its piece of the gradient."""
    return _sent(x, together, "join", "piece", dim)


def joined_for_parts(x: Tensor, together: Together, dim: int) -> Tensor:
    """Return all pieces, used differently on each worker: gradients are summed."""
    return _sent(x, together, "join", "piece_of_sum", dim)


def piece_of(x: Tensor, together: Together, dim: int) -> Tensor:
    """Return this worker's piece of a tensor that all have."""
    return _sent(x, together, "piece", "join", dim)


def piece_of_sum(x: Tensor, together: Together, dim: int) -> Tensor:
    """Return this worker's piece of the sum."""
    return _sent(x, together, "piece_of_sum", "join", dim)
