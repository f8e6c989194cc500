"""States of this worker's random generators: torch's, numpy's and Python's default ones, and those of GPUs.

In a virtual world every worker has default generators of its own, which are the process's while it runs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quorate.core.errors import CheckpointError


def states() -> dict[str, Any]:
    """Return all states, as tensors, numbers and text."""
    kind, words, *rest = np.random.get_state(legacy=True)
    saved: dict[str, Any] = {
        "torch": torch.get_rng_state().clone(),
        "python": random.getstate(),
        "numpy": [str(kind), torch.from_numpy(np.asarray(words).astype(np.int64)), *rest],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        saved["cuda"] = torch.cuda.get_rng_state(torch.cuda.current_device()).clone()
    return saved


_WORDS = 624
"""Words of a Mersenne Twister; its position may be after the last."""


def check(saved: dict[str, Any]) -> None:
    """Raise `CheckpointError` for states that `states` cannot have returned: generators do not check their position."""
    try:
        own = saved["torch"], saved.get("cuda", torch.zeros(0, dtype=torch.uint8))
        version, words, gauss = saved["python"]
        kind, numbers, place, has_gauss, cached = saved["numpy"]
        *words, index = words
        is_right = (
            all(isinstance(x, Tensor) and x.dtype == torch.uint8 and x.dim() == 1 for x in own)
            and saved["torch"].numel() == torch.get_rng_state().numel()
            and version == 3
            and _are_words(words)
            and _is_place(index)
            and (gauss is None or _is_finite(gauss))
            and kind == "MT19937"
            and isinstance(numbers, Tensor)
            and numbers.dtype == torch.int64
            and numbers.dim() == 1
            and _are_words(numbers.tolist())
            and _is_place(place)
            and type(has_gauss) is int
            and has_gauss in (0, 1)
            and _is_finite(cached)
        )
    except (KeyError, TypeError, ValueError):
        is_right = False
    if not is_right:
        raise CheckpointError("the states of the random generators are not valid")


def _are_words(words: Sequence[Any]) -> bool:
    return len(words) == _WORDS and all(type(word) is int and 0 <= word < 2**32 for word in words)


def _is_place(place: Any) -> bool:
    return type(place) is int and 0 <= place <= _WORDS


def _is_finite(number: Any) -> bool:
    return type(number) in (int, float) and math.isfinite(number)


def restore(saved: dict[str, Any]) -> None:
    """Continue drawing from `states` that were `check`ed."""
    torch.set_rng_state(saved["torch"].to(torch.uint8))
    version, words, rest = saved["python"]
    random.setstate((version, tuple(words), rest))
    kind, numbers, *others = saved["numpy"]
    np.random.set_state((kind, numbers.numpy().astype(np.uint32), *others))
    if "cuda" in saved and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"].cpu())
