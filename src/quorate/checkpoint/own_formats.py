"""Optimizers with a state beyond torch's format: with a `state_dict()` of their own, or around other optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from quorate.core.errors import CheckpointError
from quorate.replica.inner_optimizers import inner_optimizers


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
    known_ids = set(map(id, _tensors_in(state)))
    inner = {
        path: inside.state_dict()
        for path, inside in inner_optimizers(optimizer).items()
        if is_plain(state) or any(id(x) not in known_ids for x in _tensors_in(dict(inside.state)))
    }
    return {**saved, "inner": inner} if inner else saved


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a parameter group in a checkpoint: functions come from the script again."""
    return {key: x for key, x in group.items() if key != "params" and not isinstance(x, FunctionType | MethodType)}


def is_plain(state: Mapping[str, Any]) -> bool:
    """Return whether the state has torch's format."""
    return "state" in state and "param_groups" in state


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item)


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
