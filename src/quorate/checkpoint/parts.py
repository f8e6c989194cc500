"""One worker's view of a checkpoint, in memory: what is its own, and what is equal everywhere, ready to be written.

Everything is copied here, in the training thread, into memory of the host; writing it is another thread's business.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.checkpoint.encoding import ABOUT, check_tensor, encoded, flats_as_parts
from quorate.checkpoint.folder import rank_file, shard_file
from quorate.checkpoint.own_formats import options_of, state_of
from quorate.checkpoint.participants import Distributed, Trained
from quorate.checkpoint.pieces import rows_here
from quorate.checkpoint.stages import names_of
from quorate.checkpoint.tensor_file import TensorFile
from quorate.checkpoint.vectors import KeptVectors
from quorate.core.local_tensor import local
from quorate.core.resize import laws_of
from quorate.data.resuming import positions
from quorate.wire.current import Place


class HostMemory:
    """Copies of one worker's tensors, in memory of the host that is used again at the next checkpoint.

    Cost: the first copy of a tensor allocates, later ones only copy, many at a time.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self._used: set[str] = set()
        self._wanted: list[tuple[Tensor, Tensor]] = []

    def begin(self) -> None:
        """A new checkpoint: what the last one did not use is given back."""
        self._kept = {name: x for name, x in self._kept.items() if name in self._used}
        self._used, self._wanted = set(), []

    def copy(self, name: str, x: Tensor) -> Tensor:
        """Where the numbers of `x` will be, once `end` has been called."""
        there = self._kept.get(name)
        if there is None or there.shape != x.shape or there.dtype != x.dtype:
            there = self._kept[name] = torch.empty(
                x.shape, dtype=x.dtype, pin_memory=x.device.type == "cuda", device="cpu"
            )
        self._used.add(name)
        self._wanted.append((there, x))
        return there

    def end(self) -> None:
        """Copy."""
        is_on_gpu = False
        with torch.no_grad():
            for there, x in self._wanted:
                is_on_gpu |= x.device.type == "cuda"
                there.copy_(x, non_blocking=True)
        if is_on_gpu:
            torch.cuda.synchronize()
        self._wanted = []


def own_file(place: Place, all_of_it: Trained, drawn: dict[str, Any], memory: HostMemory) -> TensorFile:
    """What belongs to this worker alone, its generators being `drawn`. Raises `ConfigurationError` for state that
    cannot be kept.
    """
    rank = place.wire.rank
    state = {
        "optimizers": {one.name: _own_state(one) for one in all_of_it.ordered},
        "loaders": positions(place),
        "generators": drawn,
        "extras": {name: thing.state_dict() for name, thing in all_of_it.extras.items()},
    }
    return _file(rank_file(rank), state, memory)


def check_state(all_of_it: Trained) -> None:
    """Raise `ConfigurationError` for what cannot be kept of models, optimizers, and what the script keeps besides.

    Cost: a look at each tensor, no copy.
    """
    for name, thing in all_of_it.extras.items():
        encoded(thing.state_dict(), f"extras.{name}", lambda name, _: name)
    for one in all_of_it.optimizers.values():
        encoded(plain_state(one), "optimizer", lambda name, _: name)
        encoded(one.model.state_dict(), "model", lambda name, _: name)


def shared_files(all_of_it: Trained, memory: HostMemory) -> tuple[list[TensorFile], dict[str, Any]]:
    """What is equal on all workers, and what the manifest says about it; of models in shards, of those that hold this
    one. Files of shard 0 hold what is of whole models as well."""
    files: list[TensorFile] = []
    models: dict[int, str] = {}
    about: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    shards, shard = shard_of(all_of_it)
    for place, one in enumerate(all_of_it.ordered):
        suffix = f"-{place + 1}" if place else ""
        optimizer, is_here = f"optimizer{suffix}.safetensors", one.seat is not None or shard == 0
        if id(one.model) not in models:
            models[id(one.model)] = f"model{suffix}.safetensors"
            if is_here:
                files.append(_model_file(shard_file(models[id(one.model)], *one.shard), one, memory))
        if is_here:
            files.append(_file(shard_file(optimizer, *one.shard), plain_state(one), memory))
        rest[one.name] = {"others": [x.detach() for x in others_of(one)], "state": _fields(one, shared=True)}
        about[one.name] = {
            "algorithm": type(one.optimizer).__mro__[2].__name__,
            "strategy": one.strategy,
            "settings": dict(one.settings),
            "model": models[id(one.model)],
            "optimizer": optimizer,
            "shards": one.shard[0],
            "tensor": one.parts,
            "stages": one.stages,
        }
    if any(kept["others"] or kept["state"] for kept in rest.values()):
        files.append(_file(shard_file(STRATEGY, shards, shard), rest, memory))
    return files, about


def shard_of(all_of_it: Trained) -> tuple[int, int]:
    """Of how many shards the models are, where some are in shards, and which one is here."""
    return next((one.shard for one in all_of_it.ordered if one.seat is not None), (1, 0))


ROWS = "quorate rows"
"""The key of a model file's metadata under which stands which rows of a tensor it has, where it has not all."""
STRATEGY = "strategy.safetensors"
"""What strategies keep that is equal everywhere, and parameters of an optimizer that its model does not know."""


def plain_state(one: Distributed) -> dict[str, Any]:
    """The optimizer's state in torch's own format, and the names of its parameters.

    One with a format of its own has that beside the parameter groups, and one around others what these keep, where its
    own format leaves it out.
    """
    return {**state_of(one.optimizer), "names": names_of(one)}


def others_of(one: Distributed) -> Sequence[Tensor]:
    """The optimizer's parameters that are not the model's, in its order."""
    known = {id(p) for p in one.model.parameters()}
    return [p for p in one.parameters if id(p) not in known]


def _own_state(one: Distributed) -> dict[str, Any]:
    worker = one.worker
    return {
        "step": one.step,
        "updates": one.steps if worker is None else worker.updates,
        "options": [options_of(group) for group in one.optimizer.param_groups],
        "buffers": {name: x.detach() for name, x in one.model.named_buffers()},
        "rounds": None if worker is None or not worker.has_rounds else worker.rounds.kept(),
        "state": _fields(one, shared=False),
        "replica": _own_replica(one) if one.is_apart else None,
        "reducer": _reducer_fields(one),
    }


def _own_replica(one: Distributed) -> dict[str, Any]:
    """Where replicas differ between steps, each is kept; where there is one for all, each optimizer's state."""
    parameters = None if one.is_shared else [p.detach() for p in one.parameters]
    return {"parameters": parameters, "optimizer": plain_state(one)}


def _fields(one: Distributed, *, shared: bool) -> dict[str, Any]:
    """The fields of the strategy's state that are kept: those equal everywhere, or those of each worker."""
    state = None if one.worker is None else one.worker.state
    laws = laws_of(state)
    wanted = {name for name, law in laws.items() if law != "drop" and (law == "same") == shared}
    return {name: _written(one, getattr(state, name)) for name in laws if name in wanted}


def _written(one: Distributed, value: Any) -> Any:
    return flats_as_parts(value) if one.worker is None else KeptVectors(one.worker.replica).written(value)


def _reducer_fields(one: Distributed) -> dict[str, Any]:
    """What the reducer of the optimizer's means remembers, such as what a codec has left out."""
    state = None if one.worker is None else one.worker.reducer_state
    return {name: _written(one, getattr(state, name)) for name, law in laws_of(state).items() if law != "drop"}


def _model_file(name: str, one: Distributed, memory: HostMemory) -> TensorFile:
    """All tensors under their own names; tied ones under each of theirs, so that plain torch loads them strictly."""
    found = TensorFile(name)
    rest, rows = {}, {}
    elsewhere = one.elsewhere
    for key, value in one.model.state_dict().items():
        if key in elsewhere:
            continue
        if isinstance(value, Tensor):
            found.tensors[key] = memory.copy(f"{name}/{key}", local(check_tensor(f"model.{key}", value)).detach())
            rows[key] = rows_here(value)
        else:
            rest[key] = value  # what a module's get_extra_state() gives
    if any(rows.values()):
        found.about[ROWS] = json.dumps({key: list(here) for key, here in rows.items() if here is not None})
    if rest:
        _add(found, rest, memory, "extra state")
    return found


def _file(name: str, state: Any, memory: HostMemory, prefix: str = "") -> TensorFile:
    found = TensorFile(name)
    _add(found, state, memory, prefix)
    return found


def _add(found: TensorFile, state: Any, memory: HostMemory, prefix: str) -> None:
    def put(wanted: str, x: Tensor) -> str:
        name = wanted if wanted not in found.tensors else f"{wanted}#{len(found.tensors)}"
        found.tensors[name] = memory.copy(f"{found.name}/{name}", x)
        return name

    found.about[ABOUT] = json.dumps(encoded(state, prefix, put), separators=(",", ":"))
