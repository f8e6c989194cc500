"""The order in which vectors are over an optimizer's parameters: the same on every worker."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn import Module, Parameter


def trained_in_order(every: Sequence[Parameter], model: Module) -> list[tuple[str, Parameter]]:
    """Those of an optimizer's parameters that are trained, by name, in the model's order.

    Those that the model does not know come last, in the optimizer's order.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    order = {key: place for place, key in enumerate(names)}
    chosen = sorted((p for p in every if p.requires_grad), key=lambda p: order.get(id(p), len(order)))
    return [(names.get(id(p), f"parameter {place}"), p) for place, p in enumerate(chosen)]
