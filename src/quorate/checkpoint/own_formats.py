"""Optimizers whose state is not in torch's format alone: those with a `state_dict()` of their own, or around others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from quorate.core.errors import CheckpointError
from quorate.replica.inner_optimizers import inner_optimizers


def state_of(optimizer: Optimizer) -> dict[str, Any]:
    """What a checkpoint holds of an optimizer: torch's format, and under "own" and "inner" what is not in it."""
    state = optimizer.state_dict()
    found = dict(state)
    if not is_plain(state):
        groups, numbers = [], iter(range(sum(len(group["params"]) for group in optimizer.param_groups)))
        for group in optimizer.param_groups:
            groups.append({**options_of(group), "params": [next(numbers) for _ in group["params"]]})
        found = {"state": {}, "param_groups": groups, "own": state}
    else:
        found["param_groups"] = [{**options_of(group), "params": group["params"]} for group in state["param_groups"]]
    known = set(map(id, _tensors_in(state)))
    inner = {
        path: one.state_dict()
        for path, one in inner_optimizers(optimizer).items()
        if is_plain(state) or any(id(x) not in known for x in _tensors_in(dict(one.state)))
    }
    return {**found, "inner": inner} if inner else found


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a parameter group that a checkpoint holds: functions are the script's to give again."""
    return {key: x for key, x in group.items() if key != "params" and not isinstance(x, FunctionType | MethodType)}


def is_plain(state: Mapping[str, Any]) -> bool:
    """Whether it is torch's format."""
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
    """The optimizers inside one, and which of them have its own parameter groups."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer, self.optimizers = optimizer, inner_optimizers(optimizer)
        own = optimizer.param_groups
        self._shared = {path: _are_same(one.param_groups, own) for path, one in self.optimizers.items()}

    def check(self, own: Any, inner: Mapping[str, Any]) -> None:
        """Raise `CheckpointError` where a checkpoint is of an optimizer of another format, or around others."""
        kind = type(self._optimizer).__mro__[2].__name__
        if (own is None) != is_plain(self._optimizer.state_dict()):
            raise CheckpointError(f"the checkpoint's optimizer and the script's {kind} have state of different formats")
        missing = sorted(inner.keys() - self.optimizers.keys())
        if missing:
            raise CheckpointError(f"the checkpoint holds the state of an optimizer {missing[0]}, and {kind} has none")

    def restore(self, inner: Mapping[str, Any]) -> None:
        """Let those inside keep what `inner` holds, bit for bit, and have the parameter groups that they had."""
        for path, state in inner.items():
            one = self.optimizers[path]
            parameters = [p for group in one.param_groups for p in group["params"]]
            one.load_state_dict(state)
            if is_plain(state):
                put_bits(one, parameters, state)
        for path, is_shared in self._shared.items():
            if is_shared:
                self.optimizers[path].param_groups = self._optimizer.param_groups


def _are_same(some: list[Any], others: list[Any]) -> bool:
    return some is others or (len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True)))


def put_bits(optimizer: Optimizer, parameters: Sequence[Tensor], kept: Mapping[str, Any]) -> None:
    """Let tensors that `load_state_dict` has cast be those that were kept."""
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
