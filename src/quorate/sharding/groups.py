"""The parameter groups that torch's FSDP2 gathers and reduces together, completed for unused parameters.

A group reduces the gradients of the parameters that have one. Where workers use different parameters of a group, their
vectors differ in length, or mix parameters of one shape; so a worker adds zeros for the parameters it has not used.
"""

from __future__ import annotations

from typing import Any

import torch

from quorate.core.errors import ConfigurationError
from quorate.sharding.collectives import Pieces, WireAllGather, WireReduceScatter


def groups_of(module: Any) -> list[Any]:
    """Return the parameter groups of a module that FSDP2 has sharded."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # before torch 2.13 there is at most one
    if groups is None:
        groups = [state._fsdp_param_group]
    return [group for group in groups if group is not None]


def over_wires(module: Any, pieces: Pieces, name: str) -> None:
    """Let the groups of `module`, which is called `name`, gather and reduce by `pieces`."""
    for group in groups_of(module):
        group._all_gather_comm = WireAllGather(pieces, name)
        group._reduce_scatter_comm = WireReduceScatter(pieces, name)
        group.post_backward = Complete(group, group._reduce_scatter_comm)


def split_by_dtype(module: Any) -> None:
    """Divide each group of `module` into one for each dtype: FSDP2 reduces gradients of one dtype in a group. Raises
    `ConfigurationError` where torch knows one group in a module (before 2.13)."""
    state, split = module._get_fsdp_state(), list[Any]()
    for group in groups_of(module):
        dtypes = list(dict.fromkeys(p.sharded_param.dtype for p in group.fsdp_params))
        if len(dtypes) > 1 and not hasattr(state, "_fsdp_param_groups"):
            raise ConfigurationError(
                f"a {type(module).__mro__[2].__name__} has parameters of several dtypes, which torch "
                f"{torch.__version__} does not shard together; use torch 2.13, or convert the model to one dtype"
            )
        for dtype in dtypes[1:]:
            places = group.mesh_info, group.post_forward_mesh_info, group.device
            more = type(group)([], group.modules, *places, None, group.mp_policy, group.offload_policy)
            more.fsdp_params = [p for p in group.fsdp_params if p.sharded_param.dtype == dtype]
            split.append(more)
        group.fsdp_params = [p for p in group.fsdp_params if p.sharded_param.dtype == dtypes[0]]
    if split:
        state._fsdp_param_groups.extend(split)


class Complete:
    """Ends one group's backward pass, with a gradient for each trained parameter where any has one.

    Parameters that no worker has used keep no gradient. Cost: a check of each parameter of the group; zeros, and
    their traffic, for parameters that this worker has not used.
    """

    def __init__(self, group: Any, reducing: WireReduceScatter) -> None:
        self._group, self._reducing, self._post_backward = group, reducing, group.post_backward
        self._unused: list[tuple[Any, dict[Any, Any]]] = []
        """Parameters that no worker has used, and the hooks that are not to see their zeros."""
        reducing.reduced = self._reduced

    def __call__(self, *args: Any) -> None:
        group = self._group
        trained = [(n, p) for n, p in enumerate(group.fsdp_params) if group.reduce_grads and _is_trained(p)]
        unused = [
            (n, p) for n, p in trained if p._unsharded_param.grad is None and p.unsharded_accumulated_grad is None
        ]
        if len(unused) == len(trained):
            unused = []
        accumulates = any(p.unsharded_accumulated_grad is not None for _, p in trained)
        for _, p in unused:
            if accumulates:
                p.unsharded_accumulated_grad = torch.zeros_like(p._unsharded_param, dtype=p.reduce_dtype)
            else:
                p._unsharded_param.grad = torch.zeros_like(p._unsharded_param)
        self._reducing.unused = frozenset(n for n, _ in unused)
        try:
            self._post_backward(*args)
        finally:
            for p, hooks in self._unused:
                p.grad = None
                (p._post_accumulate_grad_hooks or {}).update(hooks)
            self._unused.clear()

    def _reduced(self) -> None:
        for n in self._reducing.unused:
            p = self._group.fsdp_params[n].sharded_param
            if p.grad is None:
                hooks = p._post_accumulate_grad_hooks or {}
                self._unused.append((p, dict(hooks)))
                hooks.clear()


def _is_trained(p: Any) -> bool:
    return hasattr(p, "_unsharded_param") and p._unsharded_param.requires_grad
