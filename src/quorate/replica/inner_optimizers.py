"""Optimizers that another one holds, as Lookahead and SAM do."""

from __future__ import annotations

from torch.optim import Optimizer


def inner_optimizers(optimizer: Optimizer) -> dict[str, Optimizer]:
    """Return the optimizers among the attributes of `optimizer`, and of these in turn, by their path."""
    optimizers: dict[str, Optimizer] = {}
    _look(optimizer, "", optimizers)
    return {name: inner for name, inner in optimizers.items() if inner is not optimizer}


def _look(optimizer: Optimizer, path: str, optimizers: dict[str, Optimizer]) -> None:
    for name, value in vars(optimizer).items():
        if name.startswith("_quorate"):
            continue
        values = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else [value]
        for place, inner in enumerate(values if name not in _OF_TORCH else ()):
            if isinstance(inner, Optimizer) and not any(inner is other for other in (optimizer, *optimizers.values())):
                key = f"{path}{name}" if values is not value and len(list(values)) == 1 else f"{path}{name}.{place}"
                optimizers[key] = inner
                _look(inner, f"{key}.", optimizers)


_OF_TORCH = ("state", "param_groups", "defaults")
