"""Arrays of JAX as tensors of torch, and back, in the same memory where both are on the host."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError


def to_torch(array: Any) -> Tensor:
    """Return the numbers of an array as a tensor on the host, in the same memory if the array is there.

    Raises `ConfigurationError` inside a function that JAX traces, where arrays have no numbers.
    """
    if isinstance(array, jax.core.Tracer):
        raise ConfigurationError(
            "quorate was called inside a function that jax.jit or another transformation of JAX traces, where workers "
            "cannot agree; call state.step and distribute outside of it"
        )
    if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    if not isinstance(array, jax.Array):
        return torch.as_tensor(np.asarray(array))
    if next(iter(array.devices())).platform != "cpu":
        array = jax.device_put(array, jax.devices("cpu")[0])
    return torch.from_dlpack(jax.block_until_ready(array))


def to_jax(x: Tensor, like: Any) -> Any:
    """Return the numbers of a tensor as an array on the device of `like`, in the same memory if both are on the host.

    Memory at another address than a multiple of 64 bytes is copied by JAX. The array is bound to no device, as arrays
    that JAX makes: functions compiled for them need not be compiled again.
    """
    plain = x.detach().cpu().contiguous()
    narrow = plain.dtype == torch.bfloat16
    array = jax.device_put(plain.view(torch.int16).numpy().view(jax.numpy.bfloat16) if narrow else plain.numpy())
    if isinstance(like, jax.Array):
        if jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(array, impl=jax.random.key_impl(like))
        if next(iter(like.devices())).platform != "cpu":
            return jax.device_put(array, like.sharding)
    return array


def copied(x: Tensor, like: Any) -> Any:
    """Return the numbers of a tensor as an array that keeps them when the tensor is written."""
    return to_jax(x.detach().clone(), like)
