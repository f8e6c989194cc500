"""Horovod's calls for tensors of TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy
from quorate.foreign.tf_tensors import to_tf, to_torch
from quorate.horovod import exchanges, reductions
from quorate.horovod.compression import Compression
from quorate.horovod.optimizer import compress_of
from quorate.horovod.workers import Adasum, Average, ReduceOp, workers
from quorate.tf.tape import Tape
from quorate.tf.tape import gradients as _gradients


def DistributedGradientTape(
    gradtape: Any,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    *,
    strategy: Strategy | str = "all-reduce",
    **settings: Any,
) -> Tape:
    """Return a tape whose `gradient` returns the means of the gradients of all workers.

    Args:
        gradtape: A `tf.GradientTape`.
        compression: `Compression.none` or `fp16`; `compress=` in `settings` names any codec.
        op: `hvd.Average` or `Adasum`.
        strategy: How workers agree: a strategy that means gradients in each step.
        settings: As in `quorate.distribute`.
    """
    workers()
    return _gradients(gradtape, strategy, **settings_of(compression, op), **settings)


def settings_of(compression: Any, op: ReduceOp) -> dict[str, Any]:
    """Return the settings of `quorate.distribute` for Horovod's. Raises `ConfigurationError` for another `op`."""
    if op not in (Average, Adasum):
        raise ConfigurationError("with TensorFlow, gradients are reduced by op=hvd.Average or hvd.Adasum")
    return {**compress_of(compression), **({"reduce": "adasum"} if op is Adasum else {})}


def allreduce(tensor: Any, average: bool | None = None, name: str | None = None, op: ReduceOp | None = None) -> Any:
    """Return the mean of an eager tensor over all workers, or what `op` says."""
    return to_tf(reductions.allreduce(to_torch(_eager(tensor, "allreduce")).clone(), average, name, op=op))


def allgather(tensor: Any, name: str | None = None) -> Any:
    """Return the eager tensors of all workers behind one another along their first axis."""
    return to_tf(exchanges.allgather(to_torch(_eager(tensor, "allgather")).clone(), name))


def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the eager tensor of `root_rank`."""
    return to_tf(exchanges.broadcast(to_torch(_eager(tensor, "broadcast")).clone(), root_rank, name))


def broadcast_variables(variables: Iterable[Any], root_rank: int) -> None:
    """Give the variables of all workers the values of `root_rank`."""
    for variable in variables:
        variable.assign(broadcast(tf.convert_to_tensor(variable), root_rank))


def _eager(tensor: Any, call: str) -> Any:
    workers()
    if not tf.executing_eagerly():
        raise ConfigurationError(f"hvd.{call} was called inside tf.function; call it outside")
    return tf.convert_to_tensor(tensor)
