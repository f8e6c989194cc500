"""Downpour SGD: asynchronous servers, independent of each other; workers push and pull every few steps.

Idea: The strategy `parameter-server` without waiting (`mode="async"`), in which each server applies gradients in its
own order of arrival (`consistent=false`). With `push_every` and `pull_every` a worker updates its own copy between
pushes, and pushes the mean of its gradients. The paper uses Adagrad on the servers; here this is the optimizer of your
script: `torch.optim.Adagrad`.

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
    """Asynchronous parameter servers, each of which applies gradients in its own order."""

    mode: Literal["sync", "bounded", "async"] = "async"
    consistent: bool = False
