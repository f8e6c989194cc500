"""`quorate.gathered`: the features of all workers, for losses that compare examples with each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from quorate.checkpoint.participants import Trained
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell
from quorate.data.context import DataContext
from quorate.train.combination import Combination
from quorate.train.compatibility import check
from quorate.wire import current
from quorate.wire.exchange import sum_in_order


class Gathered(NamedTuple):
    """The features that one worker compares its examples with."""

    features: Tensor
    """Rows of all workers, in order of rank: (N, ...)."""
    own: Tensor
    """The rows of this worker in `features`, int64 (n): the targets of a contrastive loss."""
    ranks: Tensor
    """The worker of each row, int64 (N)."""


@dataclass
class _Calls:
    """The calls of one worker, on a wire with their own order."""

    wire: Wire | None = None
    has_said: bool = False


class _Joined(Function):
    """Rows of all workers; the gradient of a worker's rows is formed from the gradients on all workers."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, wire: Wire, counts: list[int], weights: list[float]) -> Any:
        """Return the rows (N, ...)."""
        ctx.wire, ctx.counts, ctx.weights = wire, counts, weights
        return torch.cat(wire.all_gather(features.detach().contiguous()).wait())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """The mean of gradients weighs worker v by w_v / sum(w): so rows of worker r get sum_v w_v g_v / w_r."""
        own = ctx.weights[ctx.wire.rank]
        pieces = ctx.wire.all_to_all([piece.contiguous() for piece in gradient.split(ctx.counts)]).wait()
        if any(weight != own for weight in ctx.weights):
            pieces = [piece * (weight / own) for piece, weight in zip(pieces, ctx.weights, strict=True)]
        return sum_in_order(pieces).to(gradient.device), None, None, None


def gathered(features: Tensor) -> Gathered:
    """Return the features of all workers, with gradients, for contrastive losses.

    Under strategies in which all workers meet, the gradient is that of one process with the joined batch. For this, a
    worker's loss is the mean over its own examples, compared with all. Every worker makes the same calls and backward
    passes, which wait for the others. If batches differ in size, set `weight="examples"` in `quorate.distribute`.
    Under other strategies workers do not wait for each other, so only the features of this worker are returned. A
    line on stderr says so once.

    Args:
        features: A tensor of the shape (n, ...); n may differ between workers, the other sizes may not.

    Returns:
        A named tuple of `features` (N, ...), `own` (n), the positions of this worker's rows, and `ranks` (N), the
        worker of each row.

    Raises:
        ConfigurationError: `quorate.join()` was not called, `features` is no tensor with rows, other sizes or dtypes
            differ, or workers compute layers together.
        WireTimeout: A worker did not call it within the time limit of the world.

    Cost: P - 1 messages of n rows from each of P workers, and as many in the backward pass.

    Source: Radford et al. (2021), "Learning Transferable Visual Models From Natural Language Supervision", figure 3.

    Example:
        >>> images, texts = model(inputs), model(inputs)
        >>> everyone = quorate.gathered(texts)
        >>> loss = torch.nn.functional.cross_entropy(images @ everyone.features.T, everyone.own)
    """
    _check_rows(features)
    place = current.here()
    shares_batches = place.context(DataContext).deals is not None
    others_keep = place.context(DataContext).division is not None
    check(Combination(gathers_features=True, shares_batches=shares_batches, others_keep=others_keep), "gathered")
    wire, calls = place.wire, place.context(_Calls)
    workers = {
        entry.strategy: entry.worker for entry in place.context(Trained).optimizers.values() if entry.worker is not None
    }
    alone = next((label for label, worker in workers.items() if worker.strategy.meets != "all"), None)
    if wire.size == 1 or alone is not None:
        if wire.rank == 0 and wire.size > 1 and not calls.has_said:
            tell(_ALONE.format(label=alone, n=len(features)))
        calls.has_said = True
        rows = torch.arange(len(features), device=features.device)
        return Gathered(features, rows, torch.full_like(rows, wire.rank))
    calls.wire = calls.wire or wire.channel("gathered")
    weight = next((worker.next_weight for worker in workers.values()), 1.0)
    counts, weights = _agreed(calls.wire, features, weight)
    everyone: Tensor = _Joined.apply(features, calls.wire, counts, weights)  # type: ignore[no-untyped-call]
    ranks = torch.arange(wire.size).repeat_interleave(torch.tensor(counts))
    own = (ranks == wire.rank).nonzero().flatten()
    return Gathered(everyone, own.to(features.device), ranks.to(features.device))


def _check_rows(features: object) -> None:
    if isinstance(features, Tensor) and features.dim() and features.layout is torch.strided:
        return
    kind = f"one of the shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
    raise ConfigurationError(f"quorate.gathered takes a dense tensor of the shape (n, ...), not {kind}")


def _agreed(wire: Wire, features: Tensor, weight: float) -> tuple[list[int], list[float]]:
    """Return the number of rows and the weight of each worker.

    Raises `ConfigurationError` on every worker where the rows of two workers are not alike.
    """
    own = [weight, str(features.dtype).removeprefix("torch."), list(features.shape)]
    of_workers = wire.tell_all("the rows of gathered features", own).wait()
    _, dtype, shape = of_workers[0]
    for rank, (_, other_dtype, other_shape) in enumerate(of_workers):
        if (other_dtype, other_shape[1:]) != (dtype, shape[1:]):
            raise ConfigurationError(
                f"quorate.gathered was given torch.{other_dtype} of the shape {tuple(other_shape)} on rank {rank} and "
                f"torch.{dtype} of the shape {tuple(shape)} on rank 0; only the number of rows may differ"
            )
    return [shape[0] for _, _, shape in of_workers], [float(weight) for weight, _, _ in of_workers]


_ALONE = (
    "quorate: under {label} workers do not wait for each other, so quorate.gathered() returns the features of this "
    "worker only: {n} rows\n"
)
