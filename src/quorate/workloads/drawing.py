"""Parameters drawn from a seed of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

M = TypeVar("M", bound=torch.nn.Module)


def drawn(make: Callable[[], M], seed: int) -> M:
    """The module that `make` makes, its parameters drawn from `seed`; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed every accelerator
        return make()
