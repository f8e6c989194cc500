"""The backend for sums on GPUs: NCCL where each worker has a GPU to itself, else the hosts' memory."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from quorate.core.contracts import Board
from quorate.core.errors import ranks_in_words
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
    if rank < size:
        board.set(_keys(size)[rank], json.dumps(own_gpu()).encode())
    board.wait(_keys(size), timeout)
    return HOST if why_host(board, size) else NCCL


def _keys(size: int) -> list[str]:
    return [f"generation/0/gpu/{peer}" for peer in range(size)]


def why_host(board: Board, size: int) -> str:
    """Return why NCCL cannot sum the tensors of all workers' GPUs, to end a sentence; empty where it can."""
    gpus = [json.loads(written) if written else None for written in board.get_all(_keys(size))]
    if missing := [rank for rank, names in enumerate(gpus) if names is None]:
        return f"{ranks_in_words(missing)} {'has' if len(missing) == 1 else 'have'} no GPU"
    users: dict[str, list[int]] = {}
    for rank, names in enumerate(gpus):
        for name in names or ():
            users.setdefault(name, []).append(rank)
    for ranks in users.values():
        if len(ranks) > 1:
            return f"{ranks_in_words(ranks)} share a GPU"
    return ""


def on_gpu(gpu: torch.device | None) -> AbstractContextManager[object]:
    """Return a context in which `gpu` is the current one of this thread; None: which one is does not change."""
    inside = None if gpu is None else getattr(torch.get_device_module(gpu), "device", None)
    return nullcontext() if inside is None else inside(gpu)


@dataclass(frozen=True)
class Reason:
    """Why tensors of GPUs are summed in the memory of the host; `teller` is the rank that says so."""

    words: str
    teller: int = 0


def why_not_nccl(board: Board, size: int, device: torch.device) -> Reason:
    """Return the reason for tensors on `device`, after `gpu_backend` has returned "host"."""
    if device.type != "cuda":
        return Reason(f"there is no other way for {device.type}")
    gpus = board.get_all(_keys(size))
    if None in gpus:
        return Reason("QUORATE_GPU_BACKEND=host")
    with_gpu = [rank for rank, written in enumerate(gpus) if written != b"null"]
    return Reason(why_host(board, size) or "QUORATE_GPU_BACKEND=host", min(with_gpu, default=0))


def own_gpu() -> list[str] | None:
    """Return names of this process's GPU, of which other processes that use it have one; None: it has none.

    They are its UUID, and its place on this machine's bus, which the slices of one GPU (MIG) have in common.
    """
    if not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    unique = getattr(properties, "uuid", None)
    places = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    names = [] if unique is None else [str(unique)]
    if None not in places:
        names.append(f"{machine()}|{places}")
    return names or [f"{machine()}|{index}"]
