"""An optimizer as it was: torch's own state, with the bits that `load_state_dict` would round."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from quorate.core.errors import CheckpointError
from quorate.train.checkpoint.trained import Distributed


def restore_optimizer(one: Distributed, kept: dict[str, Any]) -> None:
    """Let the optimizer load `kept`, in torch's format. Raises `CheckpointError` for that of another model.

    torch casts state to the parameter's dtype: numbers that are kept in a wider one are put back as they were.
    """
    optimizer = one.optimizer
    mine = [len(group["params"]) for group in optimizer.param_groups]
    theirs = [len(group["params"]) for group in kept["param_groups"]]
    if mine != theirs:
        raise CheckpointError(
            f"the checkpoint's optimizer has parameter groups of {theirs} parameters, and the script's of {mine}"
        )
    optimizer.load_state_dict(kept)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for group in kept["param_groups"] for number in group["params"]]
    for p, number in zip(parameters, numbers, strict=True):
        state = kept["state"].get(number)
        if isinstance(state, dict):
            there = optimizer.state[p]
            for key, value in state.items():
                there[key] = _as_it_was(value, there.get(key))


def _as_it_was(kept: Any, loaded: Any) -> Any:
    if not isinstance(kept, Tensor):
        return loaded
    device = loaded.device if isinstance(loaded, Tensor) else kept.device
    return kept.to(device, copy=True)
