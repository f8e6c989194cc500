"""The optimizers whose steps go by norms of layers, with the options that trainings on pieces have."""

from __future__ import annotations

from typing import Any

import torch

from quorate.optim import LAMB, LARS

LAYERED = ("LARS", "LAMB")


def layered(name: str, named: Any) -> torch.optim.Optimizer:
    """One of them, for named parameters."""
    if name == "LARS":
        return LARS(named, lr=0.5, coefficient=0.1, weight_decay=1e-2, eps=0.1)
    return LAMB(named, lr=0.02, weight_decay=1e-2, eps=1e-4)
