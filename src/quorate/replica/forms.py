"""The forms of the weights of a saved model, two factors or shared values, and a model that is given the same forms."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from quorate.core.errors import CheckpointError
from quorate.replica import factors, groups

Form = Mapping[str, int]
"""`{"rank": r}` of a weight in two factors, `{"values": k}` of one whose numbers share values; plain JSON."""


def forms_in(state: Mapping[str, Any]) -> dict[str, Form]:
    """Return the form of each weight that is not one tensor in a model's state, by its name."""
    forms: dict[str, Form] = {}
    for key, x in state.items():
        if not isinstance(x, Tensor) or not key.rpartition(".")[2].startswith("weight"):
            continue
        if (a := _other(state, key, "_b", "_a")) is not None and x.dim() > 1 and a.shape[:1] == x.shape[1:2]:
            forms[key.removesuffix("_b")] = {"rank": int(x.shape[1])}
        indices = _other(state, key, groups.VALUES, groups.GROUPS)
        if indices is not None and indices.dtype == torch.uint8 and x.dim() == 1 and 0 < len(x) <= groups.MOST:
            forms[key.removesuffix(groups.VALUES)] = {"values": len(x)}
    return forms


def _other(state: Mapping[str, Any], key: str, suffix: str, other: str) -> Tensor | None:
    x = state.get(f"{key.removesuffix(suffix)}{other}") if key.endswith(suffix) else None
    return x if isinstance(x, Tensor) else None


def give_forms(model: Module, forms: Mapping[str, Form], optimizers: Collection[Optimizer] = ()) -> list[str]:
    """Put zeros of these `forms` in place of weights, by name; return the names of those replaced.

    Names of weights that have their form already, or that `model` lacks, are left out: loading the state then says what
    differs. Raises `CheckpointError` for a layer that cannot have the form.
    """
    modules, replaced = dict(model.named_modules()), []
    for name, form in forms.items():
        path, _, key = name.rpartition(".")
        module = modules.get(path)
        if module is None or key not in module._parameters:
            continue
        give = _to_factors if "rank" in form else _to_values
        if not give(module, key, next(iter(form.values())), optimizers):
            words = f"in two factors of rank {form['rank']}" if "rank" in form else f"of {form['values']} shared values"
            raise CheckpointError(f"{name} is {words} in the file, and cannot be so in the model")
        replaced.append(name)
    return replaced


def _to_factors(module: Module, key: str, rank: int, optimizers: Collection[Optimizer]) -> bool:
    weight: Any = module._parameters[key]
    if key not in factors.weights_of(module) or not 0 < rank <= factors.full_rank(weight):
        return False
    _, a, b = factors.factor(module, key, factors.empty_factors(weight, rank))
    for optimizer in optimizers:
        factors.step_on_factors(optimizer, weight, a, b)
    return True


def _to_values(module: Module, key: str, count: int, optimizers: Collection[Optimizer]) -> bool:
    weight: Any = module._parameters[key]
    if key not in groups.weights_of(module) or not 0 < count <= groups.MOST:
        return False
    indices = torch.zeros(weight.shape, dtype=torch.uint8, device=weight.device)
    _, values = groups.share_values(module, key, weight.new_zeros(count).detach(), indices)
    for optimizer in optimizers:
        groups.step_on_values(optimizer, weight, values, indices)
    return True
