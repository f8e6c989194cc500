"""The state of an optimizer in a checkpoint, restored with bits that `load_state_dict` would round.

It includes state beyond torch's format: a `state_dict()` of the optimizer's own, or other optimizers inside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.checkpoint.participants import Distributed
from quorate.checkpoint.pieces import fitted, joined, leaves, shape_of
from quorate.checkpoint.schema import check_options
from quorate.core.errors import CheckpointError
from quorate.core.local_tensor import is_sharded
from quorate.replica.masks import masks_of
from quorate.replica.optimizer_state import inner_optimizers
from quorate.sharding.stages.delayed import DelayedPipeline, without_gradients

_OF_OTHER_SHAPES = ("Adafactor", "LBFGS")
"""torch's optimizers that keep more, or less, than a tensor of a parameter's shape."""


def plain_class(optimizer: Optimizer) -> type[Any]:
    """Return the class that a distributed optimizer had before, the second one that its own is made of."""
    return type(optimizer).__bases__[1]


def of_shards(trees: Sequence[dict[str, Any]], entry: Distributed, own: int | None = None) -> dict[str, Any]:
    """Return this worker's optimizer state from those of all old shards: rows, or the full tensors that it owns. Old
    shards that kept full tensors kept those of different parameters, or nothing. See `pieces.joined` for `own`."""
    states = [tree["state"] for tree in trees]
    if any(state.keys() != states[0].keys() for state in states):
        if sum(map(len, states)) != len(set().union(*states)):
            raise CheckpointError("the files of its shards do not belong together: two keep the same parameter's state")
        trees, own = [{**trees[0], "state": {number: kept for state in states for number, kept in state.items()}}], None
    shard = entry.reads
    if entry.owned is not None:
        owned, shard = entry.owned(), (1, 0)
        trees = [{**tree, "state": {n: kept for n, kept in tree["state"].items() if n in owned}} for tree in trees]
    joined_state: dict[str, Any] = joined(trees, *shard, own)
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
    masks, pruned_at = kept.get("masks", {}), kept.get("pruned_at", -1)
    _check_masks(parameters, masks)
    state, gradients = without_gradients(kept["state"])
    if entry.owned is None:
        state = {number: _fitted(parameters, number, of_parameter) for number, of_parameter in state.items()}
    kept = {**kept, "state": state}
    _check_shapes(plain_class(optimizer), parameters, kept["state"])
    around = Inside(optimizer)
    own, inner = kept.get("own"), kept.get("inner", {})
    around.check(own, inner)
    kept = {key: x for key, x in kept.items() if key not in ("own", "inner", "masks", "pruned_at")}
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
    masks_of(optimizer).pruned_at = pruned_at
    if masks or masks_of(optimizer).by_tensor:
        masks_of(optimizer).restore(masks)
        if entry.worker is not None:
            entry.worker.masked()
    if isinstance(entry.pipeline, DelayedPipeline):
        entry.pipeline.go_on_with({parameters[number]: gradient for number, gradient in gradients.items()})


def _check_masks(parameters: Sequence[Tensor], masks: Mapping[int, Tensor]) -> None:
    """Raise `CheckpointError` for masks that keep numbers which the script's parameters have not."""
    for number, places in masks.items():
        if not 0 <= number < len(parameters) or places.dtype is not torch.int64 or places.dim() != 1:
            raise CheckpointError(f"the checkpoint has a mask of a parameter {number}, which the script's has not")
        numel = parameters[number].numel()
        if len(places) and not (int(places.min()) >= 0 and int(places.max()) < numel):
            raise CheckpointError(f"the mask of parameter {number} keeps numbers that its {numel} do not have")


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


def state_of(optimizer: Optimizer) -> dict[str, Any]:
    """Return the state of an optimizer in a checkpoint: torch's format, and other parts under "own" and "inner"."""
    state = optimizer.state_dict()
    saved = dict(state)
    if not is_plain(state):
        groups, numbers = [], iter(range(sum(len(group["params"]) for group in optimizer.param_groups)))
        for group in optimizer.param_groups:
            groups.append({**options_of(group), "params": [next(numbers) for _ in group["params"]]})
        saved = {"state": {}, "param_groups": groups, "own": state}
    else:
        saved["param_groups"] = [{**options_of(group), "params": group["params"]} for group in state["param_groups"]]
    known_ids = _ids_in(state)
    inner = {
        path: inside.state_dict()
        for path, inside in inner_optimizers(optimizer).items()
        if is_plain(state) or not _ids_in(inside.state) <= known_ids
    }
    return {**saved, "inner": inner} if inner else saved


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a parameter group in a checkpoint: functions come from the script again."""
    return {key: x for key, x in group.items() if key != "params" and not isinstance(x, FunctionType | MethodType)}


def is_plain(state: Mapping[str, Any]) -> bool:
    """Return whether the state has torch's format."""
    return "state" in state and "param_groups" in state


def _ids_in(value: Any) -> set[int]:
    return {id(x) for x in leaves(value) if isinstance(x, Tensor)}


class Inside:
    """The optimizers inside another one, and which of them share its parameter groups."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer, self.optimizers = optimizer, inner_optimizers(optimizer)
        own = optimizer.param_groups
        self._shared = {path: _are_same(inside.param_groups, own) for path, inside in self.optimizers.items()}

    def check(self, own: Any, inner: Mapping[str, Any]) -> None:
        """Raise `CheckpointError` for a checkpoint of an optimizer of another format, or around others."""
        kind = type(self._optimizer).__mro__[2].__name__
        if (own is None) != is_plain(self._optimizer.state_dict()):
            raise CheckpointError(f"the checkpoint's optimizer and the script's {kind} have state of different formats")
        missing = sorted(inner.keys() - self.optimizers.keys())
        if missing:
            raise CheckpointError(f"the checkpoint holds the state of an optimizer {missing[0]}, and {kind} has none")

    def restore(self, inner: Mapping[str, Any]) -> None:
        """Restore the inner optimizers bit for bit, with the parameter groups that they had."""
        for path, state in inner.items():
            inside = self.optimizers[path]
            parameters = [p for group in inside.param_groups for p in group["params"]]
            inside.load_state_dict(state)
            if is_plain(state):
                put_bits(inside, parameters, state)
        for path, is_shared in self._shared.items():
            if is_shared:
                self.optimizers[path].param_groups = self._optimizer.param_groups


def _are_same(some: list[Any], others: list[Any]) -> bool:
    return some is others or (len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True)))


def put_bits(optimizer: Optimizer, parameters: Sequence[Tensor], kept: Mapping[str, Any]) -> None:
    """Restore the bits of tensors that `load_state_dict` has cast."""
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
