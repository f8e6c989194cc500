"""Optimizers that another one holds, as Lookahead and SAM do."""

from __future__ import annotations

from torch.optim import Optimizer


def inner_optimizers(optimizer: Optimizer) -> dict[str, Optimizer]:
    """Those among the attributes of `optimizer`, and of these in turn, by the path to them."""
    found: dict[str, Optimizer] = {}
    _look(optimizer, "", found)
    return {name: inner for name, inner in found.items() if inner is not optimizer}


def _look(optimizer: Optimizer, path: str, found: dict[str, Optimizer]) -> None:
    for name, value in vars(optimizer).items():
        if name.startswith("_quorate"):
            continue
        some = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else [value]
        for place, inner in enumerate(some if name not in _OF_TORCH else ()):
            if isinstance(inner, Optimizer) and not any(inner is known for known in (optimizer, *found.values())):
                key = f"{path}{name}" if some is not value and len(list(some)) == 1 else f"{path}{name}.{place}"
                found[key] = inner
                _look(inner, f"{key}.", found)


_OF_TORCH = ("state", "param_groups", "defaults")
