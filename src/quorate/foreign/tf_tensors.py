"""Tensors of TensorFlow as tensors of torch, and back."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import torch
from torch import Tensor


def to_torch(x: Any) -> Tensor:
    """Return the numbers of an eager tensor or a variable as a tensor on the host, in the same memory if possible."""
    eager = tf.convert_to_tensor(x)
    if "CPU" not in eager.device:
        with tf.device("CPU:0"):
            eager = tf.identity(eager)
    if not eager.shape.rank or eager.dtype == tf.bool:
        return torch.as_tensor(eager.numpy())
    return torch.from_dlpack(tf.experimental.dlpack.to_dlpack(eager))


def to_tf(x: Tensor) -> Any:
    """Return the numbers of a tensor as an eager tensor, which may use its memory."""
    plain = x.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:
        return tf.cast(tf.convert_to_tensor(plain.float().numpy()), tf.bfloat16)
    return tf.convert_to_tensor(plain.numpy())
