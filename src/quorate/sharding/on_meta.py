"""Models made on the meta device: each worker makes its pieces, and no worker ever holds the full model.

Block by block, full tensors are made on the CPU, initialized by their modules, and cut; tensors in no block come last.
All workers draw the same numbers, from one seed, so replicas are equal, and a model begins with the same numbers in any
number of shards. Cost: the initialization of the full model on every worker, and memory for one block, or for the
tensors in none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from quorate.core.axes import rows_of
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local

Initialize = Callable[[Module], object]
_MOST_NAMES = 3
"""Names listed in a sentence."""


def check_meta(model: Module) -> bool:
    """Return whether the parameters are on the meta device.

    Raises `ConfigurationError` where only some are, for tensors whose initialization cannot be checked, and inside of
    `torch.device("meta")`, where messages would be made there as well.
    """
    if torch.get_default_device().type == "meta":
        raise ConfigurationError(
            'quorate.parallelize was called inside torch.device("meta"); build the model there, and call '
            "parallelize after it"
        )
    there = [(name, p.is_meta) for name, p in model.named_parameters()]
    if any(is_meta for _, is_meta in there) and not all(is_meta for _, is_meta in there):
        real = [name for name, is_meta in there if not is_meta]
        raise ConfigurationError(
            f"some parameters are on the meta device, and {_listed(real)} not; make all of the model there, or nothing"
        )
    odd = [name for name, x in model.named_buffers() if x.is_meta and x.dtype in (torch.bool, torch.uint8)]
    if odd:
        raise ConfigurationError(
            f"{_listed(odd)} on the meta device cannot be seen to be initialized, being of few values; make such "
            'buffers elsewhere, as in torch.ones(n, device="cpu", dtype=torch.bool)'
        )
    return bool(there) and there[0][1]


def make_pieces(
    model: Module,
    blocks: Sequence[Module],
    wire: Wire,
    shards: int,
    shard: int,
    device: torch.device,
    initialize: Initialize | None,
    *,
    is_on_host: bool = False,
) -> None:
    """Give a sharded `model` on the meta device its numbers on `device`; with `is_on_host` its parameters are on the
    CPU.

    `initialize` is called with each module, after the modules inside it; None: its `reset_parameters`, and the model's
    `_init_weights` (of transformers) with it. Buffers that are not on the meta device stay. All workers of `wire` call
    it. Raises `ConfigurationError` for tensors that nothing has initialized.
    """
    also = getattr(model, "_init_weights", None)
    ties = [(module, key, id(p)) for module in model.modules() for key, p in _own(module._parameters)]
    kept = [(module, key, x) for module in model.modules() for key, x in _own(module._buffers) if not x.is_meta]
    made = {id(x) for module in model.modules() for _, x in _own(module._buffers) if x.is_meta}
    buffers = [(module, key) for module in model.modules() for key, x in _own(module._buffers) if id(x) in made]
    model.to_empty(device="cpu" if is_on_host else device)
    for module, key, x in kept:
        module._buffers[key] = x.to(device)
    for module, key in buffers if is_on_host else ():
        module._buffers[key] = torch.empty_like(module.get_buffer(key), device=device)
    first: dict[int, Any] = {}
    for module, key, tied in ties:  # to_empty unties
        module._parameters[key] = first.setdefault(tied, module._parameters[key])
    names = {id(module): name for name, module in model.named_modules()}
    fresh = {(id(module), key) for module, key in buffers}
    missing: list[str] = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(_common_seed(wire))
        for unit in _units(model, blocks):
            unset = _make_unit(unit, fresh, shards, shard, partial(_initialize, initialize, also))
            missing += [f"{names[id(module)]}.{key}".lstrip(".") for module, key in unset]
    if missing:
        raise ConfigurationError(
            f"nothing has initialized {_listed(missing)} of a model on the meta device; give its module a "
            "reset_parameters(), or parallelize an initialize=, which is called with each module"
        )


def _units(model: Module, blocks: Sequence[Module]) -> list[list[Module]]:
    """Return the modules of each block, and of the remainder, each after the modules inside it."""
    roots, units, rest = set(map(id, blocks)), list[list[Module]](), list[Module]()
    seen = set[int]()

    def visit(module: Module, into: list[Module]) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        if id(module) in roots:
            into = []
            units.append(into)
        for child in module.children():
            visit(child, into)
        into.append(module)

    visit(model, rest)
    return [*units, rest]


def _make_unit(
    unit: Sequence[Module], fresh: Collection[tuple[int, str]], shards: int, shard: int, initialize: Initialize
) -> list[tuple[Module, str]]:
    """Initialize full tensors of some modules; return those that were not initialized."""
    wholes: dict[int, Parameter] = {}  # tied parameters are one
    before = [(module, dict(module._parameters), dict(module._buffers)) for module in unit]
    try:
        for module, parameters, buffers in before:
            for key, p in _own(parameters):
                if id(p) not in wholes:
                    wholes[id(p)] = Parameter(_unset(p), requires_grad=False)
                module._parameters[key] = wholes[id(p)]
            module._buffers.update({key: _unset(x) for key, x in _own(buffers) if (id(module), key) in fresh})
        for module in unit:
            initialize(module)
        made = [(dict(module._parameters), dict(module._buffers)) for module in unit]
    finally:
        for module, parameters, buffers in before:
            module._parameters.update(parameters)
            module._buffers.update(buffers)
    unset = []
    for (module, parameters, buffers), (new, new_buffers) in zip(before, made, strict=True):
        pairs: list[tuple[str, Any, Any, int]] = [(key, p, new[key], shards) for key, p in _own(parameters)]
        pairs += [(key, x, new_buffers[key], 1) for key, x in _own(buffers) if (id(module), key) in fresh]
        for key, there, whole, count in pairs:
            if whole is None or _is_unset(whole):
                unset.append((module, key))
            else:
                _cut(whole.detach(), local(there), count, shard)
    return unset


def _own(tensors: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, x) for key, x in tensors.items() if x is not None]


def _initialize(initialize: Initialize | None, also: Initialize | None, module: Module) -> None:
    if initialize is not None:
        initialize(module)
        return
    for name in ("reset_parameters", "_reset_parameters"):
        method = getattr(module, name, None)
        if callable(method):
            method()
            break
    if callable(also):
        also(module)


def _unset(x: Tensor) -> Tensor:
    """Return a tensor with the full shape of `x`, filled with a value that no initialization leaves."""
    value: Any = math.nan if x.is_floating_point() or x.is_complex() else torch.iinfo(x.dtype).min
    return torch.full(x.shape, value, dtype=x.dtype)


def _is_unset(x: Tensor) -> bool:
    if x.is_floating_point() or x.is_complex():
        return bool(x.isnan().any())
    return bool((x == torch.iinfo(x.dtype).min).any())


def _cut(whole: Tensor, here: Tensor, shards: int, shard: int) -> None:
    if shards > 1:
        rows = rows_of(whole.shape[0], shards, shard)
        whole = whole[rows.start : rows.stop]
    here.copy_(whole)


def _common_seed(wire: Wire) -> int:
    """Return a seed that rank 0 has drawn; a joining worker draws its own, as it receives the others' numbers later."""
    drawn = torch.randint(2**62, (1,))
    if wire.size > 1 and not wire.is_newcomer:
        wire.broadcast(drawn, 0).wait()
    return int(drawn)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"
