"""torch's FSDP in a script that trains under a strategy: models in shards between replicas, others refused.

A strategy agrees between replicas. `fully_shard` with a mesh of replicas and shards (torch's HSDP) says which workers
share a replica; the modules that it is called with are blocks. At the first call of the model `quorate.parallelize`
divides it, and optimizers that were made before get the pieces.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import Module

from quorate.core.axes import Zero
from quorate.core.errors import ConfigurationError
from quorate.launch.takeover.wrapper import Paused, TakenOver, begin_forward, put_off
from quorate.launch.worker.join import join
from quorate.sharding import by_fsdp  # noqa: F401 - it gets torch's functions, as long as these are in place
from quorate.sharding.parallelize import Precision, parallelize, replace_earlier
from quorate.wire import current

_NO_REPLICAS = (
    "and a strategy of quorate agrees between replicas; give each fully_shard a mesh of two axes, as "
    'init_device_mesh(device, (replicas, shards), mesh_dim_names=("replicate", "shard")) makes it, or leave out '
    "--strategy"
)
_PRECISIONS: Mapping[torch.dtype | None, Precision | None] = {
    None: None, torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16",
}  # fmt: skip


@dataclass
class Asked:
    """The calls of `fully_shard` for a model that is not divided yet, of one worker."""

    modules: list[Module] = field(default_factory=list)
    sizes: tuple[int, int] | None = None
    """Replicas and shards."""
    precision: Precision | None = None
    zero: Zero = 3
    is_synchronized: bool = True
    """Whether backward passes end with an exchange."""


def replace_fully_shard() -> None:
    """Let scripts get these functions in place of torch's."""
    packages: tuple[Any, ...] = (fsdp, fsdp._fully_shard)
    for package in packages:  # by_fsdp has torch's own
        package.fully_shard = functools.wraps(package.fully_shard)(fully_shard)
    fsdp.FullyShardedDataParallel.__init__ = _refuse_flat  # type: ignore[method-assign]


def _refuse_flat(*arguments: Any, **named: Any) -> NoReturn:
    raise ConfigurationError(
        "torch's FullyShardedDataParallel keeps a piece of the model on each worker, and a strategy of quorate agrees "
        "between replicas. Call fully_shard with a mesh of replicas and shards, or leave out --strategy"
    )


def fully_shard(
    module: Module,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Any = None,
    mp_policy: Any = None,
    offload_policy: Any = None,
    ignored_params: Any = None,
    **more: Any,
) -> Module:
    """Note that `module` is a block of a model in shards. Raises `ConfigurationError` for what a strategy cannot do."""
    refused = {
        "shard_placement_fn": shard_placement_fn,
        "offload_policy": None if type(offload_policy) is fsdp.OffloadPolicy else offload_policy,
        "ignored_params": ignored_params,
        **more,
    }
    for name, value in refused.items():
        if value:
            raise ConfigurationError(
                f"fully_shard was given {name}, which a strategy of quorate does not have; leave it out"
            )
    world = join()
    asked = current.here().context(Asked)
    sizes = _sizes(mesh)
    if asked.sizes not in (None, sizes):
        raise ConfigurationError("fully_shard was given meshes of other sizes before; give all blocks the same mesh")
    if sizes[0] * sizes[1] != world.size:
        raise ConfigurationError(
            f"fully_shard was given a mesh of {sizes[0] * sizes[1]} of {world.size} workers; it must have all of them"
        )
    precision = _precision(mp_policy)
    if asked.modules and asked.precision != precision:
        raise ConfigurationError("fully_shard was given several precisions; give all blocks the same mp_policy")
    asked.sizes, asked.precision = sizes, precision
    if reshard_after_forward is False and asked.modules:  # that of the outermost module is so anyway
        asked.zero = 2
    asked.modules.append(module)
    kind = type(module)
    module.__class__ = type(kind.__name__, (_Undivided, kind), {"__module__": kind.__module__, "_plain": kind})
    return module


def _sizes(mesh: DeviceMesh | None) -> tuple[int, int]:
    """Return the replicas and shards of `mesh`. Raises `ConfigurationError` where there is one replica."""
    if mesh is None:
        raise ConfigurationError(
            f"fully_shard was called without a mesh, so that all workers hold one replica, {_NO_REPLICAS}"
        )
    if mesh.ndim != 2 or mesh.mesh.shape[0] == 1:
        raise ConfigurationError(f"fully_shard was given a mesh of one replica over all workers, {_NO_REPLICAS}")
    if mesh.mesh.flatten().tolist() != list(range(mesh.mesh.numel())):
        raise ConfigurationError(
            "fully_shard was given a mesh in which the workers of a replica are not neighbours by rank; make it by "
            "init_device_mesh(device, (replicas, shards))"
        )
    replicas, shards = mesh.mesh.shape
    return replicas, shards


def _precision(policy: Any) -> Precision | None:
    if policy is None:
        return None
    is_known = policy.param_dtype in _PRECISIONS and policy.output_dtype is None and policy.cast_forward_inputs
    if not is_known or policy.reduce_dtype not in (None, torch.float32, policy.param_dtype):
        raise ConfigurationError(
            "fully_shard was given an mp_policy that a strategy of quorate does not have; give "
            "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), or none"
        )
    return _PRECISIONS[policy.param_dtype]


class _Undivided:
    """A block before the first call of its model, with the methods of torch's class that have a meaning then."""

    _plain: type[Module]

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Divide the model, whose outermost block this is, and call it."""
        module: Any = self
        divide(module)
        return module(*inputs, **named)

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Let backward passes to come only add to gradients, or exchange them again."""
        current.here().context(Asked).is_synchronized = requires_gradient_sync

    def set_modules_to_forward_prefetch(self, modules: Sequence[Module]) -> None:
        """Do nothing: blocks are gathered ahead by themselves."""

    set_modules_to_backward_prefetch = set_modules_to_forward_prefetch


def divide(model: Module) -> None:
    """Divide `model`, with the blocks that were asked for, and take it over.

    Raises `ConfigurationError` where it is not the outermost block, or an optimizer has state of whole parameters.
    """
    place, world = current.here(), join()
    asked, taken = place.context(Asked), place.context(TakenOver)
    inside = set(model.modules())
    for module in asked.modules:
        if module not in inside:
            raise ConfigurationError(
                f"fully_shard was called for {type(module).__name__}, which is no part of the model that is called; "
                "call it for the layers of one model, and then for the model"
            )
        unchanged: Any = module
        unchanged.__class__ = unchanged._plain
    assert asked.sizes is not None
    replicas, shards = asked.sizes
    blocks = [module for module in asked.modules if module is not model]
    taken.begin(place, world)
    earlier = list(model.named_parameters(remove_duplicate=False))
    chosen: dict[str, Any] = {"zero": asked.zero, "precision": asked.precision, "blocks": blocks or None}
    parallelize(model, world.mesh(replicas=replicas, shards=shards), **chosen)
    replace_earlier(earlier, dict(model.named_parameters(remove_duplicate=False)))
    taken.add(model, place)
    _Synchronizes(model, taken, is_on=asked.is_synchronized)
    asked.modules.clear()


class _Synchronizes:
    """The forward passes of a divided model, and whether backward passes are exchanged."""

    def __init__(self, model: Any, taken: TakenOver, *, is_on: bool) -> None:
        self._taken, self._is_on = taken, is_on
        self._paused: Paused = None
        model.set_requires_gradient_sync = self.set
        model.register_forward_pre_hook(self.begin, with_kwargs=True, prepend=True)

    def set(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """In force from the next forward pass on."""
        self._is_on = requires_gradient_sync

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def begin(self, module: Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """A forward pass begins."""
        if torch.is_grad_enabled() and self._taken.evaluations is not None:
            arguments = (*inputs, *named.values())
            begin_forward(self._taken, module, arguments)
            self._paused = put_off(self._paused, self._taken, module, is_on=not self._is_on)
