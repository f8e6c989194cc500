"""Batch norm over the batches of several workers, or over parts of one worker's batch."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm

from quorate.checkpoint.participants import Trained
from quorate.core.arguments import one_sentence
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.data.context import DataContext
from quorate.train.combination import Combination
from quorate.train.compatibility import check
from quorate.wire import current

_TOGETHER, _EXAMPLES = "_quorate_together", "_quorate_examples"


@dataclass
class _Calls:
    count: int = 0


@dataclass
class _Together:
    """The workers whose batches have one mean and one variance, seen from one of them."""

    wire: Wire
    is_checked: bool = field(default=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Together:
        return self

    def check(self) -> None:
        """Raise `ConfigurationError` where workers make unequal numbers of steps."""
        place = current.place()
        if self.is_checked or place is None:
            return
        distributed = [entry for entry in place.context(Trained).optimizers.values() if entry.worker is not None]
        for entry in distributed:
            assert entry.worker is not None
            check(Combination(label=entry.strategy or "", strategy=entry.worker.strategy, syncs_norms=True))
        self.is_checked = bool(distributed)


class _Normalized(Function):
    """The numbers minus the mean of all workers, divided by the root of their variance."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire, eps: float) -> Any:
        """Return the result; 1 / root, mean and variance by channel; and the numbers of a channel (a tensor ())."""
        dims = [dim for dim in range(x.dim()) if dim != 1]
        wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        here = x.numel() // x.shape[1]
        mean = wide.mean(dims) if here else wide.new_zeros(x.shape[1])
        squares = (wide - _by_channel(mean, x)).square().sum(dims)
        own = torch.cat([mean.new_tensor([float(here)]), mean, squares])
        every = torch.stack(wire.all_gather(own).wait())
        counts, means, sums = every[:, :1], *every[:, 1:].chunk(2, dim=1)
        count = counts.sum()
        mean = (counts * means).sum(0) / count
        variance = (sums + counts * (means - mean).square()).sum(0) / count
        scale = (variance + eps).rsqrt()
        normalized = (wide - _by_channel(mean, x)) * _by_channel(scale, x)
        ctx.save_for_backward(normalized, scale, count)
        ctx.wire, ctx.dims, ctx.dtype = wire, dims, x.dtype
        ctx.mark_non_differentiable(mean, variance, count)
        ctx.set_materialize_grads(False)
        return normalized, scale, mean, variance, count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, of_scale: Tensor | None, *_: Any) -> Any:
        """Both sums over all workers in one message (Ioffe and Szegedy 2015, section 3, in normalised numbers).

        In a second derivative the scale has a gradient as well: a third sum.
        """
        normalized, scale, count = ctx.saved_tensors
        gradient = torch.zeros_like(normalized) if gradient is None else gradient
        sums = [
            gradient.sum(ctx.dims),
            (gradient * normalized).sum(ctx.dims),
            *([] if of_scale is None else [of_scale]),
        ]
        totals: Any = _Sum.apply(torch.stack(sums), ctx.wire)  # type: ignore[no-untyped-call]
        plain, along, *rest = totals / count
        centred = gradient - _by_channel(plain, normalized) - normalized * _by_channel(along, normalized)
        for of_all in rest:  # the scale falls with each number by its square, times the normalised number
            centred = centred - normalized * _by_channel(scale * of_all, normalized)
        return (centred * _by_channel(scale, normalized)).to(ctx.dtype), None, None


class _Sum(torch.autograd.Function):
    """The sum over all workers, which all use it: its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire) -> Tensor:
        ctx.wire = wire
        return wire.all_reduce(x.detach().clone()).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Sum.apply(gradient, ctx.wire), None  # type: ignore[no-untyped-call]


def _by_channel(x: Tensor, like: Tensor) -> Tensor:
    """Return one number for each channel in a shape that broadcasts with `like`."""
    return x.view(1, -1, *[1] * (like.dim() - 2))


class SyncedBatchNorm(Module):
    """The behaviour of a batch norm with the statistics of several workers; mixed in before its class."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `x`, normalized in training by the batches of all these workers; else as the plain class does."""
        norm: Any = self
        together: _Together = self.__dict__[_TOGETHER]
        if not self.training:
            plain: Tensor = super().forward(x)
            return plain
        norm._check_input_dim(x)
        together.check()
        normalized, _, mean, variance, count = _Normalized.apply(x, together.wire, norm.eps)  # type: ignore[no-untyped-call]
        if norm.track_running_stats:
            _track(norm, mean, variance, float(count))
        if norm.affine:
            normalized = normalized * _by_channel(norm.weight, x) + _by_channel(norm.bias, x)
        return normalized.to(x.dtype)  # type: ignore[no-any-return]


@torch.no_grad()
def _track(norm: Any, mean: Tensor, variance: Tensor, count: float) -> None:
    if count < 2:
        raise ConfigurationError("batch norm needs more than one value per channel over all workers in training")
    norm.num_batches_tracked.add_(1)
    share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
    norm.running_var.lerp_((variance * (count / (count - 1))).to(norm.running_var.dtype), share)


class GhostBatchNorm(Module):
    """The behaviour of a batch norm with the statistics of parts of a batch; mixed in before its class."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `x`, in training each part of the batch normalized by itself; else as the plain class does."""
        plain = super().forward
        if not self.training:
            whole: Tensor = plain(x)
            return whole
        parts = max(1, x.shape[0] // self.__dict__[_EXAMPLES])
        return torch.cat([plain(part) for part in x.tensor_split(parts)])


@functools.cache
def _class_of(mixin: Any, plain: Any) -> type[Module]:
    return type(
        f"{mixin.__name__}Of{plain.__name__}", (mixin, plain), {"__doc__": plain.__doc__, "__module__": __name__}
    )


def _norms_in(model: Module, call: str) -> list[Module]:
    if not isinstance(model, Module):
        raise ConfigurationError(f"{call} takes a torch.nn.Module, not {type(model).__name__}")
    norms: list[Module] = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        raise ConfigurationError(f"{call}: the model has no batch norm")
    if any(isinstance(module, SyncedBatchNorm | GhostBatchNorm) for module in norms):
        raise ConfigurationError(f"{call}: the model's batch norms were already changed; call it once per model")
    return norms


@one_sentence({"model": "it is the torch.nn.Module whose batch norms are changed"})
def sync_batch_norm(model: Module, group: int | None = None) -> Module:
    """Let batch norms of `model` compute mean and variance over the batches of all workers; return the model.

    Modules remain what they are (`isinstance`, names, `state_dict`), with their class swapped for a subclass. Outputs
    and gradients are those of one process with the concatenated batches, up to rounding; batches may have unequal
    sizes. Running statistics are the same on all workers of a group. Every worker calls it, and makes the same forward
    and backward passes, which wait for the other workers. A worker that dies ends the others.

    Args:
        model: A model with batch norms.
        group: The number of workers of neighbouring ranks whose batches count together; None: all.

    Returns:
        `model`.

    Raises:
        ConfigurationError: `quorate.join()` was not called, there are no batch norms, or `group` does not divide the
            number of workers. Also if workers join or compute layers together, or, in the first pass, if the strategy
            is one in which workers do not all meet.

    Cost for a norm of C channels: forward, 2 C + 1 numbers sent to each other worker; backward, a sum of 2 C numbers.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6))
        >>> model = quorate.sync_batch_norm(model)
    """
    place = current.here()
    norms = _norms_in(model, "sync_batch_norm")
    wire, size = place.wire, place.wire.size
    each: object = size if group is None else group
    if isinstance(each, bool) or not isinstance(each, int) or each < 1 or size % each:
        raise ConfigurationError(f"group must be a number of workers that divides {size}, not {group!r}")
    shares_batches = place.context(DataContext).deals is not None
    check(Combination(syncs_norms=True, joins=wire.is_newcomer, shares_batches=shares_batches), "sync_batch_norm")
    calls = place.context(_Calls)
    calls.count += 1
    if each == 1:
        return model
    own = wire.channel(f"batch norm/{calls.count}")
    if each < size:
        first = wire.rank - wire.rank % each
        own = own.group(range(first, first + each))
    together = _Together(own)
    for module in norms:
        module.__dict__[_TOGETHER] = together
        kind: Any = type(module)
        module.__class__ = _class_of(SyncedBatchNorm, kind)
    return model


@one_sentence({"examples": "it is how many examples have a mean and a variance of their own"})
def ghost_batch_norm(model: Module, examples: int) -> Module:
    """Let batch norms of `model` compute mean and variance over parts of this worker's batch; return the model.

    Modules remain what they are, with their class swapped for a subclass. Running statistics take in one part after the
    other. Source: Hoffer, Hubara, Soudry 2017, arXiv 1705.08741, Algorithm 1.

    Args:
        model: A model with batch norms.
        examples: The least number of examples of a part; a batch is divided into as many parts as possible.

    Returns:
        `model`.

    Raises:
        ConfigurationError: There are no batch norms, or `examples` is below 2.

    Cost: one call of the norm for each part; nothing is sent.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6))
        >>> model = quorate.ghost_batch_norm(model, examples=4)
    """
    norms = _norms_in(model, "ghost_batch_norm")
    count: object = examples
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        raise ConfigurationError(f"examples must be a whole number (at least 2), not {examples!r}")
    for module in norms:
        module.__dict__[_EXAMPLES] = examples
        kind: Any = type(module)
        module.__class__ = _class_of(GhostBatchNorm, kind)
    return model
