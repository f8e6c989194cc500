"""The strategies that every law is held against: those of the package, and the examples of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

import quorate
from quorate.strategies import strategies

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "strategies").glob("*.py"))
OWN = [strategies.registered(str(path)) for path in EXAMPLES]
"""Names of those that need nothing but their file."""
OF_ONE_HOST = ["hogwild"]
"""Those whose workers have memory in common."""
OF_FEW_STEPS: dict[str, dict[str, Any]] = {
    "one-bit-adam": {"freeze": 2, "dense_below": 1},
    "one-bit-lamb": {"freeze": 2, "dense_below": 1},
    "zero-one-adam": {"freeze": 3, "doubles_after": 1, "double_every": 1, "longest": 2, "dense_below": 1},
}
"""The settings with which strategies that change after a warm-up do so within a few steps."""
OF_ADAM = sorted(name for name in strategies.names() if strategies.get(name).optimizers)
"""Those for some optimizers only, which keep the momenta of Adam."""
OF_ONE_TENSOR: dict[str, dict[str, Any]] = {"streaming-diloco": {"fragments": 1}, **OF_FEW_STEPS}
"""The settings with which a model of one tensor is trained, where defaults need more of them."""
OF_THE_SAME_BATCHES = ["detox", "draco", "gradient-coding"]
"""Those under which workers compute the same batches, which laws about batches of their own are not for."""
NAMES = [*(name for name in strategies.names() if name not in (*OWN, *OF_THE_SAME_BATCHES)), *OWN]


def optimizer_of(strategy: Any, parameters: Any, *, lr: float, momentum: float = 0.0) -> Optimizer:
    """SGD; or the optimizer that the strategy is for, where it is not for all."""
    kind = strategies.get(strategy) if isinstance(strategy, str) and strategy in strategies else strategy
    known = getattr(kind, "optimizers", ())
    if not known:
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum)
    return quorate.optim.LAMB(parameters, lr=lr) if "lamb" in known[0] else torch.optim.Adam(parameters, lr=lr)
