"""The part of a model that lies in host memory, and the bytes that FSDP copies between it and the device."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from quorate.core.axes import Offload
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.sharding.boundary import Boundary
from quorate.sharding.collectives import WireAllGather, groups_of


@dataclass(frozen=True)
class Offloaded:
    """The offloading of one model on one worker."""

    where: Offload
    delays: bool = False
    """Whether parameters show the host's step one step later."""
    corrects: bool = False
    """Whether these steps are corrected: see `optim.delay_correction`."""
    folder: Path | None = None
    """The folder of mapped files; None: offloaded tensors are in memory."""
    boundary: Boundary = field(default_factory=Boundary)

    @property
    def in_words(self) -> str:
        """A clause that continues a sentence."""
        descriptions = {
            "optimizer": "the optimizer's step on the host",
            "all": "parameters and the optimizer's step on the host",
            "disk": f"the optimizer's step on the host, in files of {self.folder}",
        }
        delay = f", one gradient behind{', and corrected' if self.corrects else ''}" if self.delays else ""
        return f"; {descriptions[self.where]}{delay}"


def offloaded(
    where: Offload | None, delays: object, correct: object, folder: str | os.PathLike[str] | None
) -> Offloaded | None:
    """Return the checked settings. Raises `ConfigurationError` for a bad folder, and for settings without `offload`."""
    if not isinstance(delays, bool):
        raise ConfigurationError(f"delayed_update={delays!r} is not known; it must be True or False")
    if delays and where is None:
        raise ConfigurationError('delayed_update needs the step on the host; give offload="optimizer" as well')
    if correct not in (None, "delay"):
        raise ConfigurationError(f'correct={correct!r} is not known; it must be "delay" or None')
    if correct and not delays:
        raise ConfigurationError('correct="delay" is for steps that are one gradient behind; give delayed_update=True')
    if folder is not None and where != "disk":
        raise ConfigurationError('offload_folder needs offload="disk"')
    if where is None:
        return None
    if where != "disk":
        return Offloaded(where, delays, bool(correct))
    path = Path(tempfile.gettempdir() if folder is None else folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"offload_folder is {path}, which cannot be created: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise ConfigurationError(f"offload_folder is {path}, which cannot be written to")
    return Offloaded(where, delays, bool(correct), path)


class TorchAllGather:
    """torch's own collective as an implementation of torch's `AllGather`."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for the gathered tensor."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> dist.Work | None:
        gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        work: dist.Work | None = gather(output_tensor, input_tensor, group=group, async_op=async_op)
        return work


class CountedAllGather:
    """Counts the input of an `AllGather`: a piece copied from the host, whose numbers have `width` bytes there."""

    def __init__(self, gathering: Any, boundary: Boundary, width: int | None) -> None:
        self._gathering, self._boundary, self._width = gathering, boundary, width
        self.allocate = gathering.allocate

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        width = self._width or input_tensor.element_size()
        self._boundary.to_device_bytes += input_tensor.numel() * width
        return self._gathering(output_tensor, input_tensor, group, async_op)


class LateHooks:
    """Calls the hooks of a group's gradients at the end of the backward pass, when their copies are on the host.

    torch waits for every copy before a hook could read it. Here the copies of all are waited for together. The bytes
    are counted as well.
    """

    def __init__(self, group: Any, boundary: Boundary, events: list[Any]) -> None:
        """`events`: of the copies of all groups of the model, which are made on one stream."""
        self._group, self._boundary, self._events = group, boundary, events
        self._post_backward, self._finalize = group.post_backward, group.finalize_backward
        self._copied: list[tuple[Any, Any]] = []
        """Parameters of which a gradient is on its way, and their hooks."""
        group.post_backward, group.finalize_backward = self.post_backward, self.finalize

    def post_backward(self, *args: Any) -> None:
        """Reduce the gradients of the group, and begin to copy them."""
        records = [record for record in self._group.fsdp_params if _has_gradient(record)]
        shards = [record.sharded_param for record in records if self._group.reduce_grads]
        hooks = [p._post_accumulate_grad_hooks for p in shards]
        for p in shards:
            p._post_accumulate_grad_hooks = None
        try:
            self._post_backward(*args)
        finally:
            for p, hooks_of_shard in zip(shards, hooks, strict=True):
                p._post_accumulate_grad_hooks = hooks_of_shard
            for record in records:
                if record.grad_offload_event is not None:
                    self._events.append(record.grad_offload_event)
                    record.grad_offload_event = None
        self._copied += zip(shards, hooks, strict=True)

    def finalize(self) -> None:
        """End the backward pass; the first group waits for the last copy of all."""
        if self._events:
            self._events[-1].synchronize()
            self._events.clear()
        self._finalize()
        copied, self._copied = self._copied, []
        for p, hooks in copied:
            if p.grad is not None:
                self._boundary.to_host_bytes += local(p.grad).nbytes
                for hook in list((hooks or {}).values()):
                    hook(p)


def _has_gradient(record: Any) -> bool:
    if not hasattr(record, "_unsharded_param"):
        return False
    return record.unsharded_accumulated_grad is not None or record._unsharded_param.grad is not None


def count(modules: Sequence[FSDPModule], boundary: Boundary, *, is_converted: bool, is_on_cpu: bool) -> None:
    """Count bytes copied to the device when pieces are gathered, and to the host when gradients have become pieces.
    `is_converted`: pieces get another dtype on the device."""

    def count_gradient(p: Tensor) -> None:
        if p.grad is not None:
            boundary.to_host_bytes += local(p.grad).nbytes

    events: list[Any] = []
    for module in modules:
        own: Any = module
        width = max(p.element_size() for p in own.parameters()) if is_converted else None
        for group in groups_of(own):
            gathering = (
                group._all_gather_comm if isinstance(group._all_gather_comm, WireAllGather) else TorchAllGather()
            )
            group._all_gather_comm = CountedAllGather(gathering, boundary, width)
            if not is_on_cpu:
                LateHooks(group, boundary, events)
    root: Any = modules[0]
    for p in root.parameters() if is_on_cpu else ():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(count_gradient)
