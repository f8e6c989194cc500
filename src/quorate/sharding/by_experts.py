"""A model's experts over the workers of a replica. Importing this takes torch a second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.nn import Module, Parameter

from quorate.core.axes import Axes
from quorate.core.errors import ConfigurationError
from quorate.sharding.experts.exchange import Exchange
from quorate.sharding.experts.layer import Experts
from quorate.sharding.mesh import Seat
from quorate.wire.metered import Metered


def experts_in(model: Module) -> list[tuple[str, Experts]]:
    """The layers of experts by name, in the model's order."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, Experts)]


def check_experts(model: Module, axes: Axes, *, is_on_meta: bool, is_offloaded: bool, is_converted: bool) -> None:
    """Raise `ConfigurationError` for what experts do not go with."""
    for name, layer in experts_in(model):
        refused = {
            "along the tensor axis; use replicas and shards": axes.tensor > 1,
            "in a model on the meta device; make it on the CPU": is_on_meta and axes.shards > 1,
            "with offload=": is_offloaded and axes.shards > 1,
            "with precision=": is_converted and axes.shards > 1,
            "on a GPU so far": axes.shards > 1 and layer.router.weight.device.type != "cpu" and not is_on_meta,
        }
        for what, is_asked in refused.items():
            if is_asked:
                raise ConfigurationError(f"{name or 'the model'} is a layer of Experts, which are not spread {what}")
        if layer.count % axes.shards:
            raise ConfigurationError(
                f"{name or 'the model'} has {layer.count} experts, which {axes.shards} shards cannot share evenly"
            )


def outside_experts(model: Module, blocks: Sequence[tuple[str, Module]]) -> list[tuple[str, Module]]:
    """Those of the `blocks` that are no part of an expert."""
    inside = {id(part) for _, layer in experts_in(model) for part in layer.experts.modules()}
    return [(name, module) for name, module in blocks if id(module) not in inside]


def by_experts(model: Module, seat: Seat) -> set[Parameter]:
    """Give each shard its experts, in place; the parameters that are in pieces now."""
    exchange = Exchange(Metered(seat.beside.channel("experts"), seat.traffic.meter), seat.traffic)
    made: set[Parameter] = set()
    for _, layer in experts_in(model):
        for module in layer.experts.modules():
            for key, p in list(module.named_parameters(recurse=False)):
                module._parameters[key] = _piece(p, seat)
                made.add(module._parameters[key])
        layer.spread_(exchange)
    return made


def _piece(p: Parameter, seat: Seat) -> Any:
    whole: dict[str, Any] = {"shape": p.shape, "stride": p.stride()}
    held = p.detach().chunk(seat.axes.shards)[seat.shard].clone(memory_format=torch.contiguous_format)
    made = Parameter(DTensor.from_local(held, seat.shards, [Shard(0)], run_check=False, **whole), p.requires_grad)
    for key, value in vars(p).items():
        setattr(made, key, value)
    return made
