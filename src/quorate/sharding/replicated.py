"""Parameters of a sharded model that every shard holds in full: those without dimensions, and those without elements.

FSDP2 cuts along the first dimension, and its kernels need elements. A placeholder of one number takes part in its
collectives; the parameter that the script sees keeps its shape, as a replicated `DTensor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor, Replicate
from torch.nn import Module, Parameter

from quorate.sharding.groups import groups_of
from quorate.sharding.plain_modules import replace_parameters


def is_uncut(p: Tensor) -> bool:
    """Return whether `p` cannot be cut: it has no dimensions, or no elements."""
    return p.dim() == 0 or p.numel() == 0


@dataclass(frozen=True)
class StoodIn:
    """A parameter of `module` that has a placeholder."""

    module: Module
    key: str
    parameter: Parameter


def stand_in(model: Module) -> dict[tuple[int, str], StoodIn]:
    """Replace parameters that cannot be cut by placeholders of shape (1,); return the parameters by module and name."""
    kept: dict[tuple[int, str], StoodIn] = {}
    stands: dict[int, Parameter] = {}
    for module in model.modules():
        for key, p in module._parameters.items():
            if p is not None and not isinstance(p, DTensor) and is_uncut(p):
                kept[id(module), key] = StoodIn(module, key, p)
                numbers = p.detach().reshape(-1) if p.numel() else p.detach().new_zeros(1)
                stands.setdefault(id(p), Parameter(numbers.clone(), requires_grad=p.requires_grad))
    if stands:
        replace_parameters(model, lambda p: stands.get(id(p), p))
    return kept


def put_back(modules: list[Any], kept: Mapping[tuple[int, str], StoodIn]) -> None:
    """Restore the shapes of parameters that `stand_in` has replaced. In the sharded `modules` they become replicated
    `DTensor`s; elsewhere they are put back unchanged."""
    for replaced in kept.values():
        if not isinstance(replaced.module._parameters[replaced.key], DTensor):
            replaced.module._parameters[replaced.key] = replaced.parameter
    for group in (group for module in modules for group in groups_of(module)):
        for sharded in group.fsdp_params:
            info = sharded._module_info
            if (id(info.module), info.param_name) in kept:
                sharded.__class__ = _Replicated
                sharded.begin(kept[id(info.module), info.param_name].parameter)


class _Replicated(FSDPParam):
    """A parameter of which every worker sends its number and takes the first; its gradient is the mean of all."""

    def begin(self, p: Parameter) -> None:
        spec: Any = self._sharding_spec
        made = DTensor.from_local(
            p.detach().to(self.device), spec.mesh, [Replicate()] * spec.mesh.ndim, run_check=False
        )
        self._sharding_spec = made._spec
        self._orig_size = self.sharded_size = p.shape
        self._contiguous_orig_stride = self.contiguous_sharded_stride = made.stride()
        self._take(Parameter(made, requires_grad=p.requires_grad))
        self._setattr_on_modules(self.sharded_param)

    def _take(self, sharded_param: Any) -> None:
        self.sharded_param = sharded_param
        here = sharded_param._local_tensor
        self._sharded_param_data = here.view(-1) if here.numel() else here.new_zeros(1)

    def reset_sharded_param(self) -> None:
        self._take(getattr(self._module_info.module, self._module_info.param_name))

    def _get_grad_inner_tensor(self, grad: Tensor) -> Tensor:
        numbers = grad.reshape(-1) if grad.numel() else grad.new_zeros(1)
        return numbers.expand(self.mesh_info.shard_mesh_size)
