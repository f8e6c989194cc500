"""Tests that were written for the CPU, with the models that `quorate.distribute` gets on a GPU.

What a model is given is copied to the GPU, and what it returns is copied back, so that only the training itself is
elsewhere: its parameters, gradients, optimizer, hooks, and all that Quorate does with them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map

import quorate
from quorate.core.contracts import Board
from tests.support.processes import run_real_board
from tests.support.second_device import begin, lacking, process_group

CPU, GPU = torch.device("cpu"), torch.device("cuda")
"""`TEST_GPU=sim` has a second device of the CPU's memory stand in (`tests.support.second_device`)."""
_LACKING = lacking() if os.environ.get("TEST_GPU") == "sim" else None
if os.environ.get("TEST_GPU") == "sim" and _LACKING is None:
    GPU = begin()


def moved(model: nn.Module, optimizer: torch.optim.Optimizer | None, device: torch.device = GPU) -> None:
    """Move both there, in place: parameters stay the same objects."""
    groups = [] if optimizer is None else optimizer.param_groups
    was_there = all(p.device.type == device.type for p in model.parameters())
    for p in [*model.parameters(), *(p for group in groups for p in group["params"])]:
        if p.device.type != device.type and device.type == "sim":  # which has no `.data` in common with the CPU
            torch.utils.swap_tensors(p, nn.Parameter(p.detach().to(device), p.requires_grad))
        elif p.device.type != device.type:
            p.data = p.data.to(device)
            if p.grad is not None:
                p.grad = p.grad.to(device)
    for module in model.modules():
        for name, x in list(module.named_buffers(recurse=False)):
            setattr(module, name, x.to(device))
    for p, kept in () if optimizer is None else optimizer.state.items():
        for key, x in kept.items():
            if isinstance(x, Tensor) and x.shape == p.shape:
                kept[key] = x.to(device)
    if not was_there and not _has_data and not getattr(model, "_is_moved", False):
        model._is_moved = True  # type: ignore[assignment]
        model.register_forward_pre_hook(lambda _, given: tree_map(_to(device), given))
        model.register_forward_hook(lambda _, given, found: tree_map(_to(CPU), found))


def _to(device: torch.device) -> Any:
    return lambda x: x.to(device) if isinstance(x, Tensor) else x


IS_REAL = GPU.type == "cuda"
LACKING = (_LACKING or "needs a GPU that torch can use") if IS_REAL and not torch.cuda.is_available() else None
"""Why nothing can be tested on one here, if nothing can."""
needs_gpu = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
needs_real_gpu = pytest.mark.skipif(not IS_REAL, reason="torch's own collectives, and its compiler, need a real GPU")
WAYS = [pytest.param("nccl", marks=needs_real_gpu), "host"]
"""How tensors of GPUs are summed."""
T = TypeVar("T")
_is_on = _has_data = False


def with_gpu() -> bool:
    """Whether models are on the GPU."""
    return _is_on


def run_on_gpu(
    size: int, task: Callable[[Any], T], timeout: float = 100.0, *, gpus: str = "host", has_data: bool = False
) -> list[T]:
    """As `run_real_world`, with models on the GPU and results on the CPU.

    All workers have one GPU. NCCL (`gpus="nccl"`) refuses that unless each worker is taken for a host of its own.
    `has_data`: what the task makes is on the GPU too, and models take it there.
    """
    return run_real_board(size, partial(_on_gpu, task, gpus, has_data), timeout)


def _on_gpu(task: Callable[[Any], T], gpus: str, has_data: bool, board: Board, rank: int, size: int) -> T:
    import quorate

    if GPU.type == "sim" and gpus == "nccl":
        process_group.stand_in()
    share_a_gpu(gpus, rank)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    world = quorate.join()
    if GPU.type == "sim":
        world.device = GPU
    with models_on_gpu(has_data=has_data), _DataOnGpu() if has_data else nullcontext():
        found: T = _at_home(task(world))
    return found


def share_a_gpu(gpus: str, rank: int) -> None:
    """Before worker `rank` joins others on its GPU: `gpus` is how they sum."""
    os.environ.update(
        QUORATE_GPU_BACKEND=gpus, NCCL_HOSTID=f"host-{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1"
    )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products have the same bits every time


def _at_home(x: Any) -> Any:
    """The same with all tensors on the CPU, in data classes too."""
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{one.name: _at_home(getattr(x, one.name)) for one in fields(x)})
    if isinstance(x, dict):
        return {key: _at_home(value) for key, value in x.items()}
    if isinstance(x, list | tuple) and not hasattr(x, "_fields"):
        return type(x)(map(_at_home, x))
    return x.detach().cpu() if isinstance(x, Tensor) else x


class _DataOnGpu(TorchFunctionMode):
    """Tensors that a test's own lines make are moved to the GPU; with the numbers that they would have on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _MAKERS and not (kwargs or {}).get("device"):
            asks = sys._getframe(1).f_code.co_filename
            if "/tests/" in asks and isinstance(found, Tensor):
                return found.to(GPU)
        return found


_MAKERS = set(_device_constructors())


@contextmanager
def models_on_gpu(*, has_data: bool = False) -> Iterator[None]:
    """The models that `quorate.distribute`, `quorate.parallelize` and torch's DDP get are on the GPU from then on."""
    import quorate.train.distribute as module

    sharded: Any = module.sharded
    parallelize: Any = quorate.parallelize
    ddp: Any = DistributedDataParallel.__init__

    def distributed(model: Any, place: Any, optimizer: Any) -> Any:
        found = sharded(model, place, optimizer)
        if found is None and isinstance(model, nn.Module):
            moved(model, optimizer)
        return found

    def in_pieces(model: nn.Module, *given: Any, **named: Any) -> Any:
        moved(model, None)
        return parallelize(model, *given, **named)

    def wrapped(self: Any, model: nn.Module, *given: Any, **named: Any) -> None:
        moved(model, None)
        ddp(self, model, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}._is_on", True)
        patch.setattr(f"{__name__}._has_data", has_data)
        patch.setattr(module, "sharded", distributed)
        patch.setattr(quorate, "parallelize", in_pieces)
        patch.setattr(DistributedDataParallel, "__init__", wrapped)
        yield
