"""The states of this worker's random generators: torch's, numpy's and python's default ones, and those of GPUs.

In a virtual world every worker has default generators of its own, which are the process's while it runs.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def states() -> dict[str, Any]:
    """All of them, as tensors, numbers and text."""
    kind, words, *rest = np.random.get_state(legacy=True)
    found: dict[str, Any] = {
        "torch": torch.get_rng_state().clone(),
        "python": random.getstate(),
        "numpy": [str(kind), torch.from_numpy(np.asarray(words).astype(np.int64)), *rest],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state(torch.cuda.current_device()).clone()
    return found


def restore(found: dict[str, Any]) -> None:
    """Go on drawing from where `states` was."""
    torch.set_rng_state(found["torch"].to(torch.uint8))
    version, words, rest = found["python"]
    random.setstate((version, tuple(words), rest))
    kind, numbers, *others = found["numpy"]
    np.random.set_state((kind, numbers.numpy().astype(np.uint32), *others))
    if "cuda" in found and torch.cuda.is_available():
        torch.cuda.set_rng_state(found["cuda"].cpu())
