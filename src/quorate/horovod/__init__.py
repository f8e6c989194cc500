"""Horovod's API for PyTorch, on Quorate: `import quorate.horovod as hvd`.

A script written for `horovod.torch` runs with this import, or unchanged under `quorate run --as horovod`.
`DistributedOptimizer` takes `strategy=` and its settings in addition, so that workers may agree in another way than by
all-reduce. Collectives are matched by their `name` where it is given, else by the order of calls. What Horovod promises
and Quorate does not is refused by name.

Horovod: Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", 2018, arXiv
1802.05799; the API as documented for version 0.28.
"""

from __future__ import annotations

from typing import NoReturn

from quorate.core.errors import ConfigurationError
from quorate.horovod import elastic as elastic
from quorate.horovod.compression import Compression as Compression
from quorate.horovod.exchanges import allgather as allgather
from quorate.horovod.exchanges import allgather_async as allgather_async
from quorate.horovod.exchanges import alltoall as alltoall
from quorate.horovod.exchanges import alltoall_async as alltoall_async
from quorate.horovod.exchanges import barrier as barrier
from quorate.horovod.exchanges import broadcast as broadcast
from quorate.horovod.exchanges import broadcast_ as broadcast_
from quorate.horovod.exchanges import broadcast_async as broadcast_async
from quorate.horovod.exchanges import broadcast_async_ as broadcast_async_
from quorate.horovod.exchanges import grouped_allgather as grouped_allgather
from quorate.horovod.exchanges import grouped_allgather_async as grouped_allgather_async
from quorate.horovod.handles import poll as poll
from quorate.horovod.handles import synchronize as synchronize
from quorate.horovod.objects import allgather_object as allgather_object
from quorate.horovod.objects import broadcast_object as broadcast_object
from quorate.horovod.objects import broadcast_optimizer_state as broadcast_optimizer_state
from quorate.horovod.objects import broadcast_parameters as broadcast_parameters
from quorate.horovod.optimizer import DistributedOptimizer as DistributedOptimizer
from quorate.horovod.optimizer import SyncBatchNorm as SyncBatchNorm
from quorate.horovod.optimizer import join as join
from quorate.horovod.reductions import allreduce as allreduce
from quorate.horovod.reductions import allreduce_ as allreduce_
from quorate.horovod.reductions import allreduce_async as allreduce_async
from quorate.horovod.reductions import allreduce_async_ as allreduce_async_
from quorate.horovod.reductions import grouped_allreduce as grouped_allreduce
from quorate.horovod.reductions import grouped_allreduce_ as grouped_allreduce_
from quorate.horovod.reductions import grouped_allreduce_async as grouped_allreduce_async
from quorate.horovod.reductions import grouped_allreduce_async_ as grouped_allreduce_async_
from quorate.horovod.reductions import grouped_reducescatter as grouped_reducescatter
from quorate.horovod.reductions import grouped_reducescatter_async as grouped_reducescatter_async
from quorate.horovod.reductions import reducescatter as reducescatter
from quorate.horovod.reductions import reducescatter_async as reducescatter_async
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

_REFUSED = {
    "start_timeline": "run `quorate trace RUN` after the training: every run is recorded",
    "stop_timeline": "run `quorate trace RUN` after the training: every run is recorded",
    "run": "start workers with `quorate run -n N script.py`, or from Python with quorate.launch",
    "sparse_allreduce_async": "build the layer with sparse=False, or pass sparse_as_dense=True to DistributedOptimizer",
    "check_extension": "Quorate has no compiled extension",
}


def mpi_threads_supported() -> bool:
    """Return False: Quorate does not use MPI."""
    return False


def _no() -> bool:
    return False


def _yes() -> bool:
    return True


mpi_enabled = mpi_built = ddl_built = ccl_built = rocm_built = _no
gloo_enabled = gloo_built = _yes
nccl_built = cuda_built = lambda: int(_has_cuda())


def _has_cuda() -> bool:
    import torch

    return torch.version.cuda is not None


def __getattr__(name: str) -> NoReturn:
    if name in _REFUSED:
        raise ConfigurationError(f"quorate.horovod has no {name}: {_REFUSED[name]}")
    raise AttributeError(f"module 'quorate.horovod' has no attribute {name!r}")
