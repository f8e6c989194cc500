"""Errors of torch about tensors in shards, restated for a training script."""

from __future__ import annotations

import re
import sys

from quorate.core.errors import ConfigurationError

_MIXED = re.compile(r"(\S+?):? got mixed torch.Tensor and DTensor")
_MISSING = re.compile(r"Operator (\S+) does not have a sharding strategy registered")
_MOVED = re.compile(
    r"in-place operations that require placement changes|requires? redistribution|as_strided not supported with DTensor"
    r"|Sharding propagation failed"
)
_FREED = re.compile(r"setStorage: .*storage of size 0", re.DOTALL)


def in_words(error: BaseException) -> ConfigurationError | None:
    """Return an error that names what a script must not do with a model in shards; None for other errors."""
    if "quorate.sharding.script_access" not in sys.modules:
        return None
    message = str(error)
    if (match := _MIXED.search(message)) is not None:
        return ConfigurationError(
            f"{match[1]} got a full tensor and a parameter in shards. Call the model, which gathers parameters (all "
            "at once with quorate.parallelize(blocks=[])), or use a block's weight after its forward pass with zero=2. "
            "Or gather it by p.full_tensor() on all workers"
        )
    if (match := _MISSING.search(message)) is not None or _MOVED.search(message) is not None:
        operation = "such operation" if match is None else match[1]
        return ConfigurationError(
            f"torch has no {operation} for tensors in shards; gather the tensor on all workers, whole = "
            "p.full_tensor(), and write back what has changed by p.copy_(whole)"
        )
    if _FREED.search(message) is not None:
        return ConfigurationError(
            "a backward pass has come to parameters in shards that were given back, as gradients of gradients "
            "(create_graph=True) do; train such a model without shards"
        )
    return None
