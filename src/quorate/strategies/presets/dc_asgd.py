"""Asynchronous SGD with delay compensation: a late gradient is moved to where the parameters are by now.

Idea: The strategy `parameter-server` without waiting, with `delay_compensation="adaptive"`: the gradient g of
parameters that have moved by dw since gets a term that stands for the Hessian, lambda g * g * dw. The servers keep what
each worker has read.

Cost: As `parameter-server`; on the servers a copy of the parameters for every worker, and three passes per gradient.

When it loses: Where the square of the gradient says little of the Hessian: far from a minimum of a likelihood, or with
small batches, whose noise is squared too.

Honesty:
- worker death: stops cleanly; with `on_death="continue"` the others go on; if it was a server, this needs
  `replication=2`
- pause: goes on; the others go on
- slow worker: goes on; nobody waits for it; its gradients are compensated by more
- corrupt gradient: goes on; a gradient with NaN or infinity is reported, skipped, or ends the training
  (`on_nonfinite`); any other one is in the parameters of all workers immediately
- resize: goes on; parameters and optimizer state are divided again
- resume: goes on; the servers keep their state, and every clock starts at zero

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
    """Late gradients are corrected for how far the parameters have moved since."""

    mode: Literal["sync", "bounded", "async"] = "async"
    """As of `parameter-server`."""
    delay_compensation: Literal["none", "constant", "adaptive"] = "adaptive"
    """As of `parameter-server`."""
    compensation: float = 2.0
    """As of `parameter-server`."""
