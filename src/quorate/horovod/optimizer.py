"""`DistributedOptimizer`: an optimizer whose steps agree with those of the other workers, by any strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy
from quorate.core.telling import tell
from quorate.foreign.training import module_of
from quorate.horovod.compression import Compression, Compressor, FP16Compressor, NoneCompressor
from quorate.horovod.workers import (
    Average,
    ProcessSet,
    ReduceOp,
    Sum,
    global_process_set,
    rank,
    size,
    workers,
)
from quorate.train.batch_norm import sync_batch_norm
from quorate.train.distribute import distribute
from quorate.train.names import StrategyName


def _names_of(
    optimizer: Optimizer, named_parameters: Iterable[tuple[str, Parameter]] | None
) -> list[tuple[str, Parameter]]:
    """Return the parameters of the optimizer with their names."""
    named = list(named_parameters or ())
    if any(not isinstance(pair, tuple) for pair in named):
        raise ConfigurationError(
            "named_parameters should be a sequence of tuples (name, parameter), usually model.named_parameters()"
        )
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"parameter names in named_parameters must be unique; found twice: {', '.join(twice)}")
    names_by_id = {id(p): name for name, p in named}
    pairs = [
        (names_by_id.get(id(p), f"noname_{place}_{index}"), p)
        for place, group in enumerate(optimizer.param_groups)
        for index, p in enumerate(group["params"])
    ]
    unnamed = sum(id(p) not in names_by_id for _, p in pairs)
    if named and unnamed:
        raise ConfigurationError(
            f"named_parameters was given, but {unnamed} parameters of the optimizer are not in it; pass "
            "model.named_parameters() of every model that it trains"
        )
    return pairs


def compress_of(compression: type[Compressor]) -> dict[str, Any]:
    """Return the settings of `distribute` for a compressor of Horovod. Raises `ConfigurationError` for others."""
    if compression is NoneCompressor:
        return {}
    if compression is FP16Compressor:
        return {"compress": "half"}
    raise ConfigurationError(
        "a compressor of your own is not supported in DistributedOptimizer; write a codec (quorate list codecs), and "
        "pass compress=NAME in place of compression"
    )


def DistributedOptimizer(
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Parameter]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    strategy: Strategy | StrategyName = "all-reduce",
    **settings: Any,
) -> Any:
    """Make `optimizer` agree with those of the other workers, and return it: the same object.

    In Horovod the script makes parameters and state of the workers equal. Quorate does so even if the script does not:
    every worker gets those of rank 0.

    Args:
        optimizer: An optimizer of torch.
        named_parameters: `model.named_parameters()`, for names in messages and checkpoints.
        compression: `Compression.none` or `fp16`; `compress=` in `settings` names any codec of Quorate.
        backward_passes_per_step: Number of backward passes before each step. Gradients are added up, as in Horovod.
        op: `hvd.Average`, `Sum` (of the gradients of all workers) or `Adasum`.
        gradient_predivide_factor: Accepted where `op` is `Average`: the result is the same but for rounding.
        num_groups: Accepted: gradients travel in buckets anyway.
        groups: As `num_groups`.
        sparse_as_dense: Whether sparse gradients are made dense; otherwise they are refused.
        process_set: Refused unless it is that of all workers.
        strategy: How workers agree; any strategy of `quorate.distribute`, or its name.
        **settings: Settings of the strategy, and what else `quorate.distribute` takes.

    Raises:
        ConfigurationError: For parameters without a name beside named ones, names that occur twice, a compressor of
            your own, some of the workers, and for what `quorate.distribute` refuses.
    """
    workers()
    if process_set.ranks is not None:
        raise ConfigurationError("DistributedOptimizer cannot train with a process set: all workers take part")
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ConfigurationError("gradient_predivide_factor is supported only with op=hvd.Average")
    if backward_passes_per_step < 1:
        raise ConfigurationError(f"backward_passes_per_step must be at least 1, not {backward_passes_per_step!r}")
    if op not in (Average, Sum, ReduceOp.ADASUM):
        raise ConfigurationError("DistributedOptimizer takes op=hvd.Average, hvd.Sum or hvd.Adasum")
    named = _names_of(optimizer, named_parameters)
    for _, p in named:
        if sparse_as_dense and p.requires_grad:
            p.register_hook(lambda grad: grad.to_dense() if grad.is_sparse else grad)
        if op is Sum and p.requires_grad and size() > 1:
            p.register_hook(lambda grad: grad * size())
    chosen = {**compress_of(compression), **({"reduce": "adasum"} if op is ReduceOp.ADASUM else {}), **settings}
    distributed: Any = distribute(optimizer, module_of(named), strategy, **chosen)
    distributed.__dict__["synchronize"] = _synchronize_of(strategy)
    distributed.__dict__["skip_synchronize"] = _skip
    return distributed


def _synchronize_of(strategy: str | Strategy) -> Callable[[], None]:
    """Return Horovod's `optimizer.synchronize()`: means of gradients are in `.grad` after a backward pass already."""
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    has_told = name == "all-reduce" or size() == 1

    def synchronize() -> None:
        nonlocal has_told
        if not has_told and rank() == 0:
            tell(
                f"quorate: optimizer.synchronize() leaves this worker's own gradients in .grad under {name}, which "
                "exchanges in step(); what is clipped between the two is each worker's own\n"
            )
        has_told = True

    return synchronize


def _skip() -> AbstractContextManager[None]:
    """Return Horovod's `optimizer.skip_synchronize()`, in which `step` does not exchange again; it never does."""
    return nullcontext()


def join(device: int = -1) -> int:
    """Wait, without more data, until all workers have called this; return the rank of the last one.

    Others that still step take their means over the workers that have data, where Horovod adds zeros. `device` has no
    effect. Training may go on afterwards, with equal replicas.
    """
    of_run = workers()
    world = of_run.joined
    of_run.joins += 1
    key = f"horovod/join/{of_run.joins}"
    place = world.wire.board.add(key)
    world.wire.board.set(f"{key}/{place}", str(world.rank).encode())
    with world.evaluate(at="replica"):
        last = world.wire.board.get(f"{key}/{world.size}")
    return world.rank if last is None else int(last)


class SyncBatchNorm(_BatchNorm):
    """Batch norm over the batches of all workers; arguments, shapes and state as `torch.nn.SyncBatchNorm`.

    See `quorate.sync_batch_norm`, which converts the batch norms of a model.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        workers()
        if size() > 1:
            sync_batch_norm(self)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 axes, not {input.dim()}")
