"""One worker's view of a checkpoint, in memory: its own state, and state that is equal everywhere, ready to be written.

Everything is copied here, in the training thread, into memory of the host; another thread writes it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.checkpoint.encoding import ABOUT, check_tensor, encoded, flats_as_parts
from quorate.checkpoint.folder import rank_file, shard_file
from quorate.checkpoint.frozen import base_digest, base_of
from quorate.checkpoint.optimizers import options_of, plain_class, state_of
from quorate.checkpoint.participants import Distributed, Trained
from quorate.checkpoint.pieces import piece_here
from quorate.checkpoint.stages import names_of
from quorate.checkpoint.tensor_file import TensorFile
from quorate.checkpoint.vectors import KeptVectors
from quorate.core.local_tensor import local
from quorate.core.resize import laws_of
from quorate.data.loader import Loaders
from quorate.replica.masks import masks_of


class HostMemory:
    """Copies of one worker's tensors, in memory of the host that is reused for the next checkpoint. Cost: the first
    copy of a tensor allocates, later ones only copy, many at a time."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self._used: set[str] = set()
        self._wanted: list[tuple[Tensor, Tensor]] = []

    def begin(self) -> None:
        """Begin a new checkpoint, and free memory that the last one did not use."""
        self._kept = {name: x for name, x in self._kept.items() if name in self._used}
        self._used, self._wanted = set(), []

    def copy(self, name: str, x: Tensor) -> Tensor:
        """Return memory for the numbers of `x`, which are copied by `end`."""
        there = self._kept.get(name)
        if there is None or there.shape != x.shape or there.dtype != x.dtype:
            there = self._kept[name] = torch.empty(
                x.shape, dtype=x.dtype, pin_memory=x.device.type == "cuda", device="cpu"
            )
        self._used.add(name)
        self._wanted.append((there, x))
        return there

    def end(self) -> None:
        """Copy all tensors."""
        with torch.no_grad():
            for there, x in self._wanted:
                there.copy_(x, non_blocking=True)
        for device in {x.device for _, x in self._wanted if x.device.type == "cuda"}:
            torch.cuda.synchronize(device)
        self._wanted = []


def own_file(rank: int, loaders: Loaders, all_of_it: Trained, drawn: dict[str, Any], memory: HostMemory) -> TensorFile:
    """Return the file of this worker's own state, with its generators' states in `drawn`. Raises `ConfigurationError`
    for state that cannot be kept."""
    state = {
        "optimizers": {entry.name: _own_state(entry) for entry in all_of_it.ordered},
        "loaders": loaders.positions(),
        "generators": drawn,
        "extras": {name: thing.state_dict() for name, thing in all_of_it.extras.items()},
    }
    return _file(rank_file(rank), state, memory)


def check_state(all_of_it: Trained) -> None:
    """Raise `ConfigurationError` for state of models, optimizers and extra objects that cannot be kept. Cost: a check
    of each tensor, no copy."""
    for name, thing in all_of_it.extras.items():
        encoded(thing.state_dict(), f"extras.{name}", lambda name, _: name)
    for entry in all_of_it.optimizers.values():
        encoded(plain_state(entry), "optimizer", lambda name, _: name)
        encoded(entry.model.state_dict(), "model", lambda name, _: name)


def shared_files(
    all_of_it: Trained, memory: HostMemory, *, trained_only: bool = False
) -> tuple[list[TensorFile], dict[str, Any]]:
    """Return the files of state that is equal on all workers, and the manifest's entry about them.

    State of models in shards is equal on all workers with this shard. Files of shard 0 hold that of full models as
    well. With `trained_only` models are without their base, of which the manifest has the digest.
    """
    files: list[TensorFile] = []
    models: dict[int, str] = {}
    about: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    shards, shard = shard_of(all_of_it)
    for place, entry in enumerate(all_of_it.ordered):
        suffix = f"-{place + 1}" if place else ""
        optimizer, is_here = f"optimizer{suffix}.safetensors", entry.coordinates is not None or shard == 0
        if id(entry.model) not in models:
            models[id(entry.model)] = f"model{suffix}.safetensors"
            if is_here:
                name = shard_file(models[id(entry.model)], *entry.shard)
                files.append(_model_file(name, entry, memory, trained_only=trained_only))
        if is_here:
            files.append(_file(shard_file(optimizer, *entry.shard), plain_state(entry), memory))
        rest[entry.name] = {"others": [x.detach() for x in others_of(entry)], "state": _fields(entry, shared=True)}
        about[entry.name] = {
            "algorithm": plain_class(entry.optimizer).__name__,
            "strategy": entry.strategy,
            "settings": dict(entry.settings),
            "model": models[id(entry.model)],
            "optimizer": optimizer,
            "shards": entry.shard[0],
            "tensor": entry.parts,
            "stages": entry.stages,
        } | ({"base": base_digest(entry.model)} if trained_only else {})
    if any(kept["others"] or kept["state"] for kept in rest.values()):
        files.append(_file(shard_file(STRATEGY, shards, shard), rest, memory))
    return files, about


def shard_of(all_of_it: Trained) -> tuple[int, int]:
    """Return the number of shards of models in shards, and the index of this one."""
    return next((entry.shard for entry in all_of_it.ordered if entry.coordinates is not None), (1, 0))


ROWS = "quorate rows"
"""The key of a model file's metadata for the rows of tensors of which it has not all."""
STRATEGY = "strategy.safetensors"
"""Strategies' state that is equal everywhere, and parameters of an optimizer that its model does not have."""


def plain_state(entry: Distributed) -> dict[str, Any]:
    """Return the optimizer's state in torch's own format, with the names of its parameters.

    An optimizer with a format of its own has it beside the parameter groups, and one around others has their state, if
    its own format leaves it out.
    """
    masks = masks_of(entry.optimizer)
    pruned = {"masks": masks.kept(), "pruned_at": masks.pruned_at} if masks.is_pruned else {}
    return {**state_of(entry.optimizer), "names": names_of(entry), **pruned}


def others_of(entry: Distributed) -> Sequence[Tensor]:
    """Return the optimizer's parameters that are not the model's, in its order."""
    in_model = {id(p) for p in entry.model.parameters()}
    return [p for p in entry.parameters if id(p) not in in_model]


def _own_state(entry: Distributed) -> dict[str, Any]:
    worker = entry.worker
    return {
        "step": entry.step,
        "updates": entry.steps if worker is None else worker.updates,
        "options": [options_of(group) for group in entry.optimizer.param_groups],
        "buffers": {name: x.detach() for name, x in entry.model.named_buffers()},
        "rounds": None if worker is None or not worker.has_rounds else worker.rounds.kept(),
        "state": _fields(entry, shared=False),
        "replica": _own_replica(entry) if entry.is_apart else None,
        "edited": worker is not None and entry.is_apart and worker.is_edited,
        "reducer": _reducer_fields(entry),
    }


def _own_replica(entry: Distributed) -> dict[str, Any]:
    """Return the replica, where replicas differ between steps; where all share one, each optimizer's state."""
    parameters = None if entry.is_shared else [p.detach() for p in entry.parameters]
    return {"parameters": parameters, "optimizer": plain_state(entry)}


def _fields(entry: Distributed, *, shared: bool) -> dict[str, Any]:
    state = None if entry.worker is None else entry.worker.state
    laws = laws_of(state)
    wanted = {name for name, law in laws.items() if law != "drop" and (law == "same") == shared}
    return {name: _written(entry, getattr(state, name)) for name in laws if name in wanted}


def _written(entry: Distributed, value: Any) -> Any:
    return flats_as_parts(value) if entry.worker is None else KeptVectors(entry.worker.replica).written(value)


def _reducer_fields(entry: Distributed) -> dict[str, Any]:
    state = None if entry.worker is None else entry.worker.reducer_state
    return {name: _written(entry, getattr(state, name)) for name, law in laws_of(state).items() if law != "drop"}


def _model_file(name: str, entry: Distributed, memory: HostMemory, *, trained_only: bool) -> TensorFile:
    """Return a file of all tensors under their names; tied ones under each name, so that plain torch loads them
    strictly."""
    file = TensorFile(name)
    rest, rows = {}, {}
    elsewhere, base = entry.elsewhere, base_of(entry.model) if trained_only else {}
    for key, value in entry.model.state_dict().items():
        if key in elsewhere or key in base:
            continue
        if isinstance(value, Tensor):
            file.tensors[key] = memory.copy(f"{name}/{key}", local(check_tensor(f"model.{key}", value)).detach())
            rows[key] = piece_here(value)
        else:
            rest[key] = value  # from a module's get_extra_state()
    if any(rows.values()):
        file.about[ROWS] = json.dumps({key: here.as_json for key, here in rows.items() if here is not None})
    if rest:
        _add(file, rest, memory, "extra state")
    return file


def _file(name: str, state: Any, memory: HostMemory, prefix: str = "") -> TensorFile:
    file = TensorFile(name)
    _add(file, state, memory, prefix)
    return file


def _add(file: TensorFile, state: Any, memory: HostMemory, prefix: str) -> None:
    def put(wanted: str, x: Tensor) -> str:
        name = wanted if wanted not in file.tensors else f"{wanted}#{len(file.tensors)}"
        file.tensors[name] = memory.copy(f"{file.name}/{name}", x)
        return name

    file.about[ABOUT] = json.dumps(encoded(state, prefix, put), separators=(",", ":"))
