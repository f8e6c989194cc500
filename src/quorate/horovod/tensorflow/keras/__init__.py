"""Horovod's API for Keras, on Quorate: `import quorate.horovod.tensorflow.keras as hvd`.

A script for `horovod.tensorflow.keras` or `horovod.keras` runs with this import on each backend of Keras 3.
`DistributedOptimizer` takes `strategy=` and its settings in addition.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import keras

from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy
from quorate.horovod.compression import Compression as Compression
from quorate.horovod.objects import allgather_object as allgather_object
from quorate.horovod.objects import broadcast_object as broadcast_object
from quorate.horovod.optimizer import compress_of
from quorate.horovod.tensorflow.keras import callbacks as callbacks
from quorate.horovod.workers import Adasum as Adasum
from quorate.horovod.workers import Average as Average
from quorate.horovod.workers import ReduceOp, workers
from quorate.horovod.workers import Sum as Sum
from quorate.horovod.workers import cross_rank as cross_rank
from quorate.horovod.workers import cross_size as cross_size
from quorate.horovod.workers import init as init
from quorate.horovod.workers import is_initialized as is_initialized
from quorate.horovod.workers import local_rank as local_rank
from quorate.horovod.workers import local_size as local_size
from quorate.horovod.workers import rank as rank
from quorate.horovod.workers import shutdown as shutdown
from quorate.horovod.workers import size as size

_REFUSED = {
    "broadcast_global_variables": "pass hvd.callbacks.BroadcastGlobalVariablesCallback(0) to fit",
    "elastic": "a worker that dies is replaced by `quorate run` itself: see docs/howto/join.md",
}


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    average_aggregated_gradients: bool = True,
    *,
    strategy: Strategy | str = "all-reduce",
    **settings: Any,
) -> Any:
    """Let a Keras optimizer agree with those of the other workers; return it, the same object.

    Exchanges begin in `model.fit` with `hvd.callbacks.BroadcastGlobalVariablesCallback(0)`, which knows the model.

    Args:
        optimizer: An optimizer object of Keras.
        name: The name of the optimizer in checkpoints.
        compression: `Compression.none` or `fp16`; `compress=` in `settings` names any codec.
        backward_passes_per_step: Number of batches for each update; their gradients are averaged.
        op: `hvd.Average` or `Adasum`.
        average_aggregated_gradients: Only True is supported: gradients of several batches are averaged.
        strategy: How workers agree; any strategy of `quorate.distribute`, or its name.
        settings: As in `quorate.distribute`.

    Raises:
        ConfigurationError: For other values than these.
    """
    workers()
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigurationError(
            f"hvd.DistributedOptimizer takes an optimizer of Keras, not {type(optimizer).__name__}"
        )
    if op not in (Average, Adasum):
        raise ConfigurationError("with Keras, gradients are reduced by op=hvd.Average or hvd.Adasum")
    if not average_aggregated_gradients:
        raise ConfigurationError("average_aggregated_gradients=False is not supported; multiply the learning rate")
    if backward_passes_per_step > 1:
        optimizer.gradient_accumulation_steps = backward_passes_per_step
    chosen = {**compress_of(compression), **({"reduce": "adasum"} if op is Adasum else {}), **settings}
    callbacks.mark(optimizer, strategy, chosen if name is None else {"name": name, **chosen})
    return optimizer


def load_model(filepath: Any, **settings: Any) -> Any:
    """Load a model that was saved by Keras, and let its optimizer agree with those of the other workers."""
    model = keras.models.load_model(filepath, **settings)
    DistributedOptimizer(model.optimizer)
    return model


def __getattr__(name: str) -> NoReturn:
    if name in _REFUSED:
        raise ConfigurationError(f"quorate.horovod.tensorflow.keras has no {name}: {_REFUSED[name]}")
    raise AttributeError(f"module {sys.modules[__name__].__name__!r} has no attribute {name!r}")
