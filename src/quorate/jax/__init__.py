"""Trainings in JAX under any strategy: `quorate.jax.distribute(params, tx, strategy=...)`.

JAX computes the gradients, and optax the updates; strategies act on a mirror of the parameters in memory of torch.
"""

from __future__ import annotations

from quorate.core.installed import missing_extra

try:
    import jax as _jax
    import optax as _optax
except ImportError as error:
    raise missing_extra("quorate.jax needs JAX and optax", extra="jax", package="jax optax") from error

from quorate.jax.state import State as State
from quorate.jax.state import distribute as distribute

__all__ = ["State", "distribute"]
