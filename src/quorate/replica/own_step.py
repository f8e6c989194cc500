"""A `step` that a script has put on an optimizer object, in place of that of its class."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, cast

from torch.optim import Optimizer

OWN_STEP = "_quorate_own_step"
"""The attribute of a distributed optimizer that holds this step."""


def own_step_of(optimizer: Optimizer) -> Callable[..., Any] | None:
    """Return the `step` that a script has put on `optimizer`; None: there is none, or a scheduler's."""
    step: Any = optimizer.__dict__.get("step")
    if step is None or not hasattr(step, "_wrapped_by_lr_sched"):
        return cast("Callable[..., Any] | None", step)
    inside: Any = getattr(step, "__wrapped__", None)  # a scheduler keeps the function that it has wrapped
    if inside is None or inside is getattr(type(optimizer).step, "__func__", type(optimizer).step):
        return None
    return MethodType(inside, optimizer)
