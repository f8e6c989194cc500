"""Comparison of the arguments of `distribute`, which are equal on all workers, before any other exchange."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, ranks_in_words
from quorate.core.strategy import Strategy
from quorate.core.vectors import Layout, digest_of, tables_beside
from quorate.replica.optimizer_state import beside
from quorate.replica.plain_step import options_in_force
from quorate.replica.replica import Replica


@dataclasses.dataclass(frozen=True)
class Call:
    """One worker's call of `distribute`."""

    choices: dict[str, Any]
    """The arguments, by their names in sentences; plain JSON values."""
    tensors: dict[str, list[str]]
    """By kind, each parameter and buffer in words."""

    @property
    def summary(self) -> dict[str, Any]:
        """A short value that differs between different calls; plain JSON."""
        return {**self.choices, **{kind: _digest(words) for kind, words in self.tensors.items()}}


def call_of(replica: Replica, strategy: Strategy, choices: Mapping[str, Any]) -> Call:
    """Return this worker's call, with `choices`; without learning rates and other options (`compare_options`)."""
    plain, groups, kind = replica.plain, replica.optimizer.param_groups, type(strategy)
    settings = {field.name: _plain(getattr(strategy, field.name)) for field in dataclasses.fields(strategy)}
    arguments = {
        "the optimizer": f"{plain.__module__}.{plain.__qualname__}",
        "the strategy": f"{kind.__module__}.{kind.__qualname__}",
        **{f"the setting {name}": value for name, value in settings.items()},
        **choices,
        "the number of parameter groups": len(groups),
    }
    return Call(arguments, tensors_of(replica))


def tensors_of(replica: Replica) -> dict[str, list[str]]:
    """Return each parameter and buffer in words, by kind."""
    groups = replica.optimizer.param_groups
    names = {id(x): name for name, x in (*replica.model.named_parameters(), *replica.model.named_buffers())}
    return {
        "parameter": _laid_out(replica.layout),
        "place of parameter": _places(replica.layout),
        "parameter of the optimizer": [
            f"{_in_words(p, names)} in group {number}" for number, group in enumerate(groups) for p in group["params"]
        ],
        "further tensor of the model": [_in_words(x, names) for x in beside(replica.model, replica.every)],
    }


def _laid_out(layout: Layout) -> list[str]:
    return [
        *(f"{s.name} {s.dtype} {s.shape}" for s in layout.segments),
        *(f"sparse {table}" for table in tables_beside(layout)),
    ]


def _places(layout: Layout) -> list[str]:
    return [f"{s.name} in part {s.part} from {s.offset} on" for s in layout.segments]


def _in_words(x: Tensor, names: Mapping[int, str]) -> str:
    return f"{names.get(id(x), 'a parameter')} {x.dtype} {tuple(x.shape)}"


def _plain(value: object) -> Any:
    """Return `value` as JSON; for other types, their name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return type(value).__qualname__


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def compare_calls(own: Call, optimizer: Optimizer, wire: Wire) -> None:
    """Raise `ConfigurationError`, on every worker, naming the first difference from rank 0, in one exchange.

    If some optimizers have state and others have none, only those were loaded: all get rank 0's state and options then.
    Otherwise the options are compared, too.
    """
    gathered = gathered_values([own.summary, bool(optimizer.state), options_in_force(optimizer)], wire)
    calls = [call for call, *_ in gathered]
    for name in dict.fromkeys(key for call in calls for key in call):
        values = [json.dumps(call.get(name)) for call in calls]
        if len(set(values)) == 1:
            continue
        if name in own.tensors:
            raise _different_models(name, own.tensors[name], wire)
        raise ConfigurationError(
            f"{_difference(name, values)}; every worker must call quorate.distribute with the same arguments"
        )
    if len({has_state for _, has_state, _ in gathered}) == 1:
        _compare_options([options for *_, options in gathered])


def _compare_options(of_workers: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    for number in range(len(of_workers[0])):
        groups = [options[number] for options in of_workers]
        for name in dict.fromkeys(name for group in groups for name in group):
            values = [json.dumps(group.get(name)) for group in groups]
            if len(set(values)) > 1:
                raise ConfigurationError(
                    f"{_difference(f'{name} of parameter group {number}', values)}; every worker must give its "
                    "optimizer the same options before quorate.distribute"
                )


def compare_layouts(layout: Layout, wire: Wire) -> None:
    """Raise `ConfigurationError` if new layouts differ; the error says if only places differ."""
    if len(set(gathered_values(digest_of(layout), wire))) == 1:
        return
    is_same = len(set(map(_digest, gathered_values(_laid_out(layout), wire)))) == 1
    kind, words = ("place of parameter", _places(layout)) if is_same else ("parameter", _laid_out(layout))
    raise _different_models(kind, words, wire)


def _different_models(kind: str, words: Sequence[str], wire: Wire) -> ConfigurationError:
    gathered: list[list[str]] = gathered_values(words, wire)
    rank, theirs = next(((rank, x) for rank, x in enumerate(gathered) if x != gathered[0]), (0, gathered[0]))
    place = next((i for i, (a, b) in enumerate(zip(gathered[0], theirs, strict=False)) if a != b), None)
    if place is not None:
        detail = f"{kind} {place} is {gathered[0][place]} on rank 0 and {theirs[place]} on rank {rank}"
    else:
        detail = f"rank 0 has {len(gathered[0])} {kind}s and rank {rank} has {len(theirs)}"
    return ConfigurationError(f"the workers built different models: {detail}; every worker must build the same model")


def compare_with_those_joined(own: Call, theirs: Mapping[str, Any], *, who: str = "worker") -> None:
    """Raise `ConfigurationError` on a newcomer, or a server (`who`), whose call differs from `theirs`."""
    for name, value in own.summary.items():
        if json.dumps(theirs.get(name)) == json.dumps(value):
            continue
        if name in own.tensors:
            raise ConfigurationError(
                f"this {who} has built a different model than the workers it joins; run the same script"
            )
        raise ConfigurationError(
            f"{name} is {_short(value)} here, and {_short(theirs.get(name))} on the workers that this one joins; run "
            "the same script"
        )


def gathered_values(value: Any, wire: Wire) -> list[Any]:
    """Return the `value` of each worker, plain JSON, by rank."""
    carried = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    return [json.loads(bytes(x.tolist())) for x in wire.all_gather(carried).wait()]


def _difference(name: str, values: Sequence[str]) -> str:
    other = next(value for value in values if value != values[0])
    ranks = [rank for rank, value in enumerate(values) if value == other]
    words = _short(json.loads(other)), _short(json.loads(values[0]))
    if words[0] == words[1]:
        words = other, values[0]
    return f"{name} is {words[0]} on {ranks_in_words(ranks)} and {words[1]} on rank 0"


def _short(value: Any) -> str:
    return value.rpartition(".")[2] if isinstance(value, str) else json.dumps(value)
