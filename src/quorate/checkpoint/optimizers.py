"""An optimizer restored from torch's state, with bits that `load_state_dict` would round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from quorate.checkpoint.own_formats import Inside, is_plain, put_bits
from quorate.checkpoint.participants import Distributed
from quorate.checkpoint.pieces import fitted, joined, shape_of
from quorate.checkpoint.schema import check_options
from quorate.core.errors import CheckpointError
from quorate.core.local_tensor import is_sharded

_OF_OTHER_SHAPES = ("Adafactor", "LBFGS")
"""torch's optimizers that keep more, or less, than a tensor of a parameter's shape."""


def of_shards(trees: Sequence[dict[str, Any]], entry: Distributed) -> dict[str, Any]:
    """Return this worker's optimizer state from those of all old shards: rows, or the full tensors that it owns. Old
    shards that kept full tensors kept those of different parameters, or nothing."""
    states = [tree["state"] for tree in trees]
    if any(state.keys() != states[0].keys() for state in states):
        if sum(map(len, states)) != len(set().union(*states)):
            raise CheckpointError("the files of its shards do not belong together: two keep the same parameter's state")
        trees = [{**trees[0], "state": {number: kept for state in states for number, kept in state.items()}}]
    shard = entry.reads
    if entry.owned is not None:
        owned, shard = entry.owned(), (1, 0)
        trees = [{**tree, "state": {n: kept for n, kept in tree["state"].items() if n in owned}} for tree in trees]
    joined_state: dict[str, Any] = joined(trees, *shard)
    return joined_state


def restore_optimizer(entry: Distributed, kept: dict[str, Any]) -> None:
    """Let the optimizer load `kept`, in torch's format. Raises `CheckpointError` for that of another model. torch casts
    state to the parameter's dtype: numbers that were kept in a wider one are restored exactly."""
    optimizer = entry.optimizer
    counts = [len(group["params"]) for group in optimizer.param_groups]
    saved_counts = [len(group["params"]) for group in kept["param_groups"]]
    if counts != saved_counts:
        raise CheckpointError(
            f"the checkpoint's optimizer has parameter groups of {saved_counts} parameters, "
            f"and the script's of {counts}"
        )
    check_options(optimizer.param_groups, kept["param_groups"], "the options in the optimizer's file")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if entry.owned is None:
        fitting = {number: _fitted(parameters, number, state) for number, state in kept["state"].items()}
        kept = {**kept, "state": fitting}
    _check_shapes(type(optimizer).__mro__[2], parameters, kept["state"])
    around = Inside(optimizer)
    own, inner = kept.get("own"), kept.get("inner", {})
    around.check(own, inner)
    kept = {key: x for key, x in kept.items() if key not in ("own", "inner")}
    if own is not None:
        optimizer.load_state_dict(own)
    else:
        groups = [
            {**group, **saved_group}
            for group, saved_group in zip(optimizer.param_groups, kept["param_groups"], strict=True)
        ]
        optimizer.load_state_dict({**kept, "param_groups": groups})  # what a later torch has in addition stays
        put_bits(optimizer, parameters, kept)
    for path, state in inner.items():
        if is_plain(state):
            _check_shapes(type(around.optimizers[path]), parameters, state["state"])
    around.restore(inner)


def _fitted(parameters: Sequence[Tensor], number: Any, state: Any) -> Any:
    if not isinstance(state, dict) or not isinstance(number, int) or not is_sharded(parameters[number]):
        return state
    p = parameters[number]
    return {
        key: fitted(p, x) if isinstance(x, Tensor) and x.dim() and shape_of(x) == p.shape else x
        for key, x in state.items()
    }


def _check_shapes(kind: type[Any], parameters: Sequence[Tensor], state: Mapping[Any, Any]) -> None:
    """Check that torch's own optimizers keep numbers and tensors of a parameter's shape, which torch does not check."""
    if not kind.__module__.startswith("torch.optim.") or kind.__name__ in _OF_OTHER_SHAPES:
        return
    for number, p in enumerate(parameters):
        kept = state.get(number, {})
        for key, x in kept.items() if isinstance(kept, dict) else [("state", kept)]:
            if isinstance(x, Tensor) and x.shape != p.shape and x.numel() != 1:
                raise CheckpointError(
                    f"{key} of parameter {number} has the shape {tuple(x.shape)}, not {tuple(p.shape)}"
                )
            if not isinstance(x, Tensor | int | float | None):
                raise CheckpointError(f"{key} of parameter {number} of the optimizer is a {type(x).__name__}")
