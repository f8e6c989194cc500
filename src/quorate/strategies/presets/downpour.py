"""Downpour SGD: asynchronous servers, independent of each other; workers push and pull every few steps.

Idea: The strategy `parameter-server` without waiting (`mode="async"`), in which each server applies gradients in its
own order of arrival (`consistent=False`). With `push_every` and `pull_every` a worker steps on its own copy between
pushes, and pushes the mean of its gradients. The paper steps with Adagrad on the servers, which is the user's optimizer
here: `torch.optim.Adagrad`.

Cost: As `parameter-server`; between hosts less by `push_every` and `pull_every`.

When it loses: As `parameter-server` without waiting; and parts of the parameters that a worker reads may be of
different versions. Between pushes replicas drift apart, more with a larger `pull_every`.

Honesty:
- pause: goes on; the others go on
- slow worker: goes on; nobody waits for it; its gradients are more stale when they are applied

Paper: Dean et al., "Large scale distributed deep networks", NIPS 2012, Section 4.1; both periods are 1 in its
experiments. There each gradient is a whole step, which is `step_size="full"` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.strategies import register
from quorate.strategies.parameter_server import ParameterServer


@register("downpour")
@dataclass(frozen=True, kw_only=True)
class Downpour(ParameterServer):
    """Asynchronous servers, each in an order of its own."""

    mode: Literal["sync", "bounded", "async"] = "async"
    consistent: bool = False
