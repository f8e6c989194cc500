"""`quorate.shard`: this worker's part of a dataset, as a loader."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch.utils.data import Dataset

from quorate.core.errors import unknown
from quorate.data.assignment import StaticShare
from quorate.data.loader import Loader, Loading
from quorate.wire.current import here

SHARES = ("static",)
"""The ways to cut an epoch among workers."""


def shard(
    dataset: Dataset[Any],
    batch_size: int,
    *,
    share: str = "static",
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    num_workers: int = 0,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    pin_memory: bool = False,
    timeout: float = 0,
    worker_init_fn: Callable[[int], None] | None = None,
    multiprocessing_context: str | BaseContext | None = None,
    generator: torch.Generator | None = None,
    prefetch_factor: int | None = None,
    persistent_workers: bool = False,
    in_order: bool = True,
) -> Loader:
    """This worker's share of `dataset`, in batches of `batch_size` *per worker*; a new order every epoch.

    `share` "static" is DDP's equal split: the same batches as `DataLoader` with `DistributedSampler` for equal
    `seed`, `shuffle` and `drop_last`, and `set_epoch` is not needed. `drop_last` cuts the epoch to a multiple of the
    number of workers, and leaves out an incomplete last batch; otherwise some examples come twice. The other
    arguments are those of torch's DataLoader. `dataset` and all arguments must be equal on every worker.

    Raises `ConfigurationError` before `quorate.join()`, for an unknown `share`, a batch size below 1, a dataset that
    is empty or has no length, and, with `drop_last`, a batch larger than the share.
    """
    if share not in SHARES:
        raise unknown("share", share, SHARES)
    wire = here().wire
    mine = StaticShare(rank=wire.rank, size=wire.size, seed=seed, shuffle=shuffle, drop_last=drop_last)
    loading = Loading(
        num_workers=num_workers,
        collate_fn=collate_fn,
        pin_memory=pin_memory,
        timeout=timeout,
        worker_init_fn=worker_init_fn,
        multiprocessing_context=multiprocessing_context,
        generator=generator,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
        in_order=in_order,
    )
    return Loader(dataset, batch_size, mine, loading)
