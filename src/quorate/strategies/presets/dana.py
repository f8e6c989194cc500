"""DANA: each worker keeps the momentum of its own gradients, and reads the parameters that all momenta lead to.

Idea: The strategy `parameter-server` without waiting, with `momentum="worker"`: a worker applies Nesterov momentum to
its own gradients and pushes the result, and the servers step without momentum. So a worker reads parameters that
include the momentum of all workers, and its own next step. One momentum over all pushes would treat the gradients of
other workers as a worker's own past.

Cost: As `parameter-server`; a vector per worker, and three passes per step.

When it loses: With one worker it is SGD with Nesterov's momentum. Without momentum it is plain asynchronous SGD.

Honesty:
- pause: goes on; the others go on
- slow worker: goes on; nobody waits for it; its gradients are more stale when they are applied

Paper: Hakimi, Barkai, Gabel, Schuster, "Taming momentum in a distributed asynchronous environment", 2019 (arXiv
1907.11612), DANA-Slim. There each gradient is a whole step, which is `step_size="full"` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.strategies import register
from quorate.strategies.parameter_server import ParameterServer


@register("dana")
@dataclass(frozen=True, kw_only=True)
class DANA(ParameterServer):
    """An asynchronous parameter server; each worker keeps the momentum of its own gradients."""

    mode: Literal["sync", "bounded", "async"] = "async"
    momentum: Literal["server", "worker"] = "worker"
