"""Correction of steps whose gradients are one step old, for any optimizer.

With u[t] the optimizer's whole step (rate, bias correction, decoupled decay, orthogonalization), parameters move by

    theta[t] = theta[t - 1] - u[t] - (u[t] - u[t - 1])

The first step of a parameter is plain. So parameters are one predicted step ahead of the sum of all steps: theta[t] is
theta[0] - (u[1] + ... + u[t]) - (u[t] - u[1]). A gradient at theta[t] is applied one step later, near the point where
it was computed. A step of a changed learning rate does not rescale the step before it. A parameter without a gradient
stays as it is, with its last step.

Source: arXiv 2606.30634 (ICML 2026), Algorithms 1 and 2, for a delay of exactly one step. Memory: the last uncorrected
step, one number for each parameter, in the optimizer's state; and a copy of the parameters during a step. Cost: three
passes over the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

from quorate.core.local_tensor import as_piece_of, local

LAST_STEP = "last_step"
"""The name of the last uncorrected step in the optimizer's state of a parameter."""


@contextmanager
def delay_corrected(optimizer: Optimizer) -> Iterator[None]:
    """Correct the step of `optimizer` that is made inside, as if its gradients were one step old.

    A step that a GradScaler leaves out, as a gradient is infinite, is not corrected.
    """
    attributes: dict[str, Any] = optimizer.__dict__
    if float(attributes.get("found_inf", 0.0)):
        yield
        return
    stepped = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    steps = [local(p).detach().clone() for p in stepped]
    yield
    with torch.no_grad():
        for p, step in zip(stepped, steps, strict=True):
            step.sub_(numbers := local(p))
            state = optimizer.state[p]
            if (last := state.get(LAST_STEP)) is not None:
                numbers.sub_(step).add_(local(last))
            state[LAST_STEP] = as_piece_of(p, step)
