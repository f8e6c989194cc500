"""An optimizer as it was: torch's own state, with the bits that `load_state_dict` would round."""

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


def of_shards(trees: Sequence[dict[str, Any]], one: Distributed) -> dict[str, Any]:
    """What the optimizers of all old shards kept, as this worker's keeps it: rows, or the whole tensors that it owns.

    Old shards that kept whole tensors kept those of different parameters, or nothing.
    """
    states = [tree["state"] for tree in trees]
    if any(state.keys() != states[0].keys() for state in states):
        if sum(map(len, states)) != len(set().union(*states)):
            raise CheckpointError("the files of its shards do not belong together: two keep the same parameter's state")
        trees = [{**trees[0], "state": {number: kept for state in states for number, kept in state.items()}}]
    shard = one.reads
    if one.owned is not None:
        mine, shard = one.owned(), (1, 0)
        trees = [{**tree, "state": {n: kept for n, kept in tree["state"].items() if n in mine}} for tree in trees]
    found: dict[str, Any] = joined(trees, *shard)
    return found


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
    check_options(optimizer.param_groups, kept["param_groups"], "the options in the optimizer's file")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if one.owned is None:
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
        groups = [{**mine, **theirs} for mine, theirs in zip(optimizer.param_groups, kept["param_groups"], strict=True)]
        optimizer.load_state_dict({**kept, "param_groups": groups})  # what a later torch has in addition stays
        put_bits(optimizer, parameters, kept)
    for path, state in inner.items():
        if is_plain(state):
            _check_shapes(type(around.optimizers[path]), parameters, state["state"])
    around.restore(inner)


def _fitted(parameters: Sequence[Tensor], number: Any, state: Any) -> Any:
    """What is of a parameter's shape, as tensors of its kind."""
    if not isinstance(state, dict) or not isinstance(number, int) or not is_sharded(parameters[number]):
        return state
    p = parameters[number]
    return {
        key: fitted(p, x) if isinstance(x, Tensor) and x.dim() and shape_of(x) == p.shape else x
        for key, x in state.items()
    }


def _check_shapes(kind: type[Any], parameters: Sequence[Tensor], state: Mapping[Any, Any]) -> None:
    """What torch's own optimizers keep of a parameter is a number, or has its shape: they do not look themselves."""
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
