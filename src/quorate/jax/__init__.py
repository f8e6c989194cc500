"""Trainings in JAX under any strategy: `quorate.jax.distribute(params, tx, strategy=...)`.

JAX computes the gradients, and optax the updates; strategies act on a mirror of the parameters in memory of torch.
"""

from __future__ import annotations

import importlib.util

from quorate.core.installed import missing_extra

if not (importlib.util.find_spec("jax") and importlib.util.find_spec("optax")):
    raise missing_extra("quorate.jax needs JAX and optax", extra="jax", package="jax optax")

from quorate.jax.state import State as State
from quorate.jax.state import distribute as distribute

__all__ = ["State", "distribute"]
