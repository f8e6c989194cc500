"""Horovod's API for TensorFlow, on Quorate: `import quorate.horovod.tensorflow as hvd`.

Gradients are means of all workers by `DistributedGradientTape`, inside and outside of `tf.function`. For `model.fit`
there is `quorate.horovod.tensorflow.keras`, which needs no TensorFlow where Keras has another backend.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from quorate.core.errors import ConfigurationError
from quorate.horovod.compression import Compression as Compression
from quorate.horovod.objects import allgather_object as allgather_object
from quorate.horovod.objects import broadcast_object as broadcast_object
from quorate.horovod.optimizer import join as join
from quorate.horovod.workers import Adasum as Adasum
from quorate.horovod.workers import Average as Average
from quorate.horovod.workers import Max as Max
from quorate.horovod.workers import Min as Min
from quorate.horovod.workers import ProcessSet as ProcessSet
from quorate.horovod.workers import Product as Product
from quorate.horovod.workers import Sum as Sum
from quorate.horovod.workers import add_process_set as add_process_set
from quorate.horovod.workers import cross_rank as cross_rank
from quorate.horovod.workers import cross_size as cross_size
from quorate.horovod.workers import global_process_set as global_process_set
from quorate.horovod.workers import init as init
from quorate.horovod.workers import is_homogeneous as is_homogeneous
from quorate.horovod.workers import is_initialized as is_initialized
from quorate.horovod.workers import local_rank as local_rank
from quorate.horovod.workers import local_size as local_size
from quorate.horovod.workers import rank as rank
from quorate.horovod.workers import remove_process_set as remove_process_set
from quorate.horovod.workers import shutdown as shutdown
from quorate.horovod.workers import size as size

if TYPE_CHECKING:
    from quorate.horovod.tensorflow.collectives import DistributedGradientTape as DistributedGradientTape
    from quorate.horovod.tensorflow.collectives import allgather as allgather
    from quorate.horovod.tensorflow.collectives import allreduce as allreduce
    from quorate.horovod.tensorflow.collectives import broadcast as broadcast
    from quorate.horovod.tensorflow.collectives import broadcast_variables as broadcast_variables

_OF_TENSORS = ("DistributedGradientTape", "allgather", "allreduce", "broadcast", "broadcast_variables")
_REFUSED = {
    "DistributedOptimizer": "use DistributedGradientTape in a loop of your own, or quorate.horovod.tensorflow.keras",
    "BroadcastGlobalVariablesHook": "sessions of TensorFlow 1 are not supported; use broadcast_variables",
    "broadcast_global_variables": "sessions of TensorFlow 1 are not supported; use broadcast_variables",
    "elastic": "a worker that dies is replaced by `quorate run` itself: see docs/howto/join.md",
}


def __getattr__(name: str) -> Any:
    if name in _OF_TENSORS:
        return getattr(importlib.import_module("quorate.horovod.tensorflow.collectives"), name)
    if name in _REFUSED:
        raise ConfigurationError(f"quorate.horovod.tensorflow has no {name}: {_REFUSED[name]}")
    raise AttributeError(f"module 'quorate.horovod.tensorflow' has no attribute {name!r}")
