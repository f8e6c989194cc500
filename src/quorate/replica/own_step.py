"""A `step` that a script has put on an optimizer itself, in the place of its class's."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, cast

from torch.optim import Optimizer

OWN_STEP = "_quorate_own_step"
"""The attribute of a distributed optimizer that holds it."""


def own_step_of(optimizer: Optimizer) -> Callable[..., Any] | None:
    """The step that stands on `optimizer` itself; None where there is none, or only what an LR scheduler put there."""
    step: Any = optimizer.__dict__.get("step")
    if step is None or not hasattr(step, "_wrapped_by_lr_sched"):
        return cast("Callable[..., Any] | None", step)
    inside: Any = getattr(step, "__wrapped__", None)  # a scheduler keeps the function that it has wrapped
    if inside is None or inside is getattr(type(optimizer).step, "__func__", type(optimizer).step):
        return None
    return MethodType(inside, optimizer)
