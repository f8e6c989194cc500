"""Asynchronous SGD with delay compensation: late gradients are corrected to the current parameters.

Idea: The strategy `parameter-server` without waiting, with `delay_compensation="adaptive"`. If the parameters have
moved by dw since a worker read them, the term lambda g * g * dw, which approximates the Hessian, is added to its
gradient g. The servers keep the parameters that each worker has read.

Cost: As `parameter-server`; on the servers a copy of the parameters for every worker, and three passes per gradient.

When it loses: If the squared gradient approximates the Hessian badly: far from a minimum of a likelihood, or with small
batches, whose noise is squared too.

Honesty:
- pause: goes on; the others go on
- slow worker: goes on; nobody waits for it; its gradients are compensated by more

Paper: Zheng, Meng, Wang, Chen, Yu, Ma, Liu, "Asynchronous stochastic gradient descent with delay compensation", ICML
2017, Algorithm 2; lambda 2 and decay 0.95 are its choice for CIFAR-10. There each gradient is a whole step, which is
`step_size="full"` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.strategies import register
from quorate.strategies.parameter_server import ParameterServer


@register("dc-asgd")
@dataclass(frozen=True, kw_only=True)
class DCASGD(ParameterServer):
    """An asynchronous parameter server that corrects stale gradients for the movement of the parameters."""

    mode: Literal["sync", "bounded", "async"] = "async"
    delay_compensation: Literal["none", "constant", "adaptive"] = "adaptive"
    compensation: float = 2.0
