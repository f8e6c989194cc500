"""The backend for sums on GPUs: NCCL where each worker has a GPU to itself, else the hosts' memory."""

from __future__ import annotations

import json

import torch

from quorate.core.contracts import Board
from quorate.wire.real.trust import machine

NCCL, HOST = "nccl", "host"
GPU_BACKENDS = (NCCL, HOST)


def gpu_backend(board: Board, rank: int, size: int, chosen: str, timeout: float) -> str:
    """Return `chosen`, or if that is empty the backend for the GPUs of all workers: the same on every worker.

    NCCL refuses two workers on one GPU, and workers without a GPU. Waits until all workers have written which GPU they
    have. Raises `WireTimeout` where one does not.
    """
    if chosen or size == 1:
        return chosen or NCCL
    keys = [f"generation/0/gpu/{peer}" for peer in range(size)]
    if rank < size:
        board.set(keys[rank], json.dumps(own_gpu()).encode())
    board.wait(keys, timeout)
    gpus = [json.loads(written or b"null") for written in board.get_all(keys)]
    return NCCL if None not in gpus and len(set(gpus)) == size else HOST


def own_gpu() -> str | None:
    """Return a name of this process's GPU that is unique in the run; None: it has none."""
    if not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device()
    unique = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return f"{machine()}|{index}" if unique is None else str(unique)
