"""Parameters of a model as pieces on several workers. Importing this module imports torch.

All become `DTensor`s over the same workers, even those that every worker holds in full: torch's functions over all
parameters, such as `clip_grad_norm_`, then count each number once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.nn import Module, Parameter

from quorate.sharding.tensor.plan import FUSED, by_channel, cut_dim, is_convolution, is_linear, is_transposed


def cut_parameters(model: Module, plan: Mapping[str, str], mesh: DeviceMesh) -> None:
    """Replace all parameters of `model` by their pieces; shared parameters stay shared."""
    placed: dict[int, Placement] = {}
    for name, module in model.named_modules():
        style = plan.get(name, "whole")
        for key, p in module.named_parameters(recurse=False):
            placement = _placement(module, style, key)
            if placement is not None:
                placed[id(p)] = placement
    made: dict[int, Parameter] = {}
    for module in list(model.modules()):
        for key, p in list(module.named_parameters(recurse=False)):
            if id(p) not in made:
                made[id(p)] = _piece(p, placed.get(id(p), Replicate()), mesh)
            module._parameters[key] = made[id(p)]


def _placement(module: Module, style: str, key: str) -> Placement | None:
    dim = cut_dim(style, is_transposed=is_transposed(module))
    if dim is None:
        return None
    if key == "weight":
        return _StridedShard(dim, split_factor=FUSED) if style == "fused" else Shard(dim)
    is_known = is_linear(module) or is_convolution(module) or by_channel(module) is not None
    return Shard(0) if style in ("columns", "pieces", "channels", "head", "logits") and is_known else None


def _piece(p: Parameter, placement: Any, mesh: DeviceMesh) -> Parameter:
    x = p.detach()
    if isinstance(placement, _StridedShard):
        x = of_fused(x, placement.dim, mesh.size(), mesh.get_local_rank())
    elif isinstance(placement, Shard):
        x = x.chunk(mesh.size(), placement.dim)[mesh.get_local_rank()]
    whole: dict[str, Any] = {"shape": p.shape, "stride": torch.empty(p.shape, device="meta").stride()}
    held = x.clone(memory_format=torch.contiguous_format)
    made = Parameter(DTensor.from_local(held, mesh, [placement], run_check=False, **whole), p.requires_grad)
    for key, value in vars(p).items():
        setattr(made, key, value)
    return made


def of_fused(x: Tensor, dim: int, workers: int, worker: int) -> Tensor:
    """Return a worker's part of query, of key, and of value, which are concatenated along `dim`."""
    part: Tensor = x.unflatten(dim, (FUSED, workers, -1)).select(dim + 1, worker).flatten(dim, dim + 1)
    return part
