"""A model's experts over the workers of a replica. Importing this takes torch a second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.nn import Module, Parameter

from quorate.core.axes import Axes, Offload
from quorate.core.errors import ConfigurationError
from quorate.sharding.experts import Exchange, Experts
from quorate.sharding.mesh import Coordinates
from quorate.wire.metered import Metered


def experts_in(model: Module) -> list[tuple[str, Experts]]:
    """Return the layers of experts with their names, in the model's order."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, Experts)]


def check_experts(
    model: Module, axes: Axes, *, is_on_meta: bool, offload: Offload | None, precision: str | None
) -> None:
    """Raise `ConfigurationError` for settings that experts do not support."""
    for name, layer in experts_in(model):
        called, is_spread = name or "the model", axes.shards > 1
        refused = {
            "along the tensor axis; use replicas and shards": axes.tensor > 1,
            "from the meta device; make the model on the CPU": is_on_meta,
            'with offload="all"; "optimizer" and "disk" go': is_spread and offload == "all",
            "with precision=; convert the model instead": is_spread and precision not in (None, "float32"),
        }
        for setting, is_asked in refused.items():
            if is_asked:
                raise ConfigurationError(f"{called} is a layer of Experts, which are not spread {setting}")
        if layer.count % axes.shards:
            raise ConfigurationError(
                f"{called} has {layer.count} experts, which {axes.shards} shards cannot share evenly"
            )


def outside_experts(
    model: Module, blocks: Sequence[tuple[str, Module]], tables: Iterable[Module] = ()
) -> list[tuple[str, Module]]:
    """Return the `blocks` that are no part of an expert, and none of the `tables`."""
    inside = {id(part) for _, layer in experts_in(model) for part in layer.experts.modules()} | set(map(id, tables))
    return [(name, module) for name, module in blocks if id(module) not in inside]


def by_experts(model: Module, coordinates: Coordinates) -> set[Parameter]:
    """Give each shard its experts, in place; return the parameters that are now in pieces."""
    exchange = Exchange(Metered(coordinates.beside.channel("experts"), coordinates.traffic.meter), coordinates.traffic)
    made: dict[int, Parameter] = {}
    for _, layer in experts_in(model):
        for module in layer.experts.modules():
            for key, p in list(module.named_parameters(recurse=False)):
                if id(p) not in made:
                    piece = made[id(p)] = _piece(p, coordinates)
                    made[id(piece)] = piece  # where two layers have the same experts
                module._parameters[key] = made[id(p)]
        layer.spread_(exchange)
    return set(made.values())


def _piece(p: Parameter, coordinates: Coordinates) -> Any:
    whole: dict[str, Any] = {"shape": p.shape, "stride": p.stride()}
    held = p.detach().chunk(coordinates.axes.shards)[coordinates.shard].clone(memory_format=torch.contiguous_format)
    piece = DTensor.from_local(held, coordinates.shards, [Shard(0)], run_check=False, **whole)
    made = Parameter(piece, p.requires_grad)
    for key, value in vars(p).items():
        setattr(made, key, value)
    return made
