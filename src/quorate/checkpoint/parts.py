"""One worker's view of a checkpoint, in memory: what is its own, and what is equal everywhere, ready to be written.

Everything is copied here, in the training thread, into memory of the host; writing it is another thread's business.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from quorate.checkpoint.encoding import ABOUT, check_tensor, encoded
from quorate.checkpoint.folder import rank_file
from quorate.checkpoint.host_memory import HostMemory
from quorate.checkpoint.participants import Distributed, Trained
from quorate.checkpoint.tensor_file import FileOutput, Open, Written, write_tensors
from quorate.checkpoint.vectors import flats_as_parts
from quorate.core.resize import laws_of
from quorate.data.resuming import positions
from quorate.wire.current import Place


@dataclass
class TensorFile:
    """A file to be: its tensors are copies already."""

    name: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path, opened: Open = FileOutput) -> Written:
        """Raises `OSError`."""
        return write_tensors(folder / self.name, self.tensors, {"format": "pt", **self.about}, opened)


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
    """What is equal on all workers, and what the manifest says about it."""
    files: list[TensorFile] = []
    models: dict[int, str] = {}
    about: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for place, one in enumerate(all_of_it.ordered):
        suffix = f"-{place + 1}" if place else ""
        if id(one.model) not in models:
            models[id(one.model)] = f"model{suffix}.safetensors"
            files.append(_model_file(models[id(one.model)], one, memory))
        files.append(_file(f"optimizer{suffix}.safetensors", plain_state(one), memory))
        rest[one.name] = {"others": [x.detach() for x in others_of(one)], "state": _fields(one, shared=True)}
        about[one.name] = {
            "algorithm": type(one.optimizer).__mro__[2].__name__,
            "strategy": one.strategy,
            "settings": dict(one.settings),
            "model": models[id(one.model)],
            "optimizer": files[-1].name,
        }
    if any(kept["others"] or kept["state"] for kept in rest.values()):
        files.append(_file(STRATEGY, rest, memory))
    return files, about


STRATEGY = "strategy.safetensors"
"""What strategies keep that is equal everywhere, and parameters of an optimizer that its model does not know."""


def plain_state(one: Distributed) -> dict[str, Any]:
    """The optimizer's state in torch's own format."""
    return dict(one.optimizer.state_dict())


def others_of(one: Distributed) -> Sequence[Tensor]:
    """The optimizer's parameters that are not the model's, in its order."""
    known = {id(p) for p in one.model.parameters()}
    return [p for p in one.parameters if id(p) not in known]


def _own_state(one: Distributed) -> dict[str, Any]:
    worker = one.worker
    return {
        "step": one.step,
        "updates": one.steps if worker is None else worker.updates,
        "options": [{k: v for k, v in group.items() if k != "params"} for group in one.optimizer.param_groups],
        "buffers": {name: x.detach() for name, x in one.model.named_buffers()},
        "rounds": None if worker is None or not worker.has_rounds else worker.rounds.kept(),
        "state": _fields(one, shared=False),
        "replica": _own_replica(one) if one.is_apart else None,
    }


def _own_replica(one: Distributed) -> dict[str, Any]:
    """Where replicas differ between steps, each is kept."""
    return {"parameters": [p.detach() for p in one.parameters], "optimizer": plain_state(one)}


def _fields(one: Distributed, *, shared: bool) -> dict[str, Any]:
    """The fields of the strategy's state that are kept: those equal everywhere, or those of each worker."""
    state = None if one.worker is None else one.worker.state
    laws = laws_of(state)
    wanted = {name for name, law in laws.items() if law != "drop" and (law == "same") == shared}
    return {name: flats_as_parts(getattr(state, name)) for name in laws if name in wanted}


def _model_file(name: str, one: Distributed, memory: HostMemory) -> TensorFile:
    """All tensors under their own names; tied ones under each of theirs, so that plain torch loads them strictly."""
    found = TensorFile(name)
    rest = {}
    for key, value in one.model.state_dict().items():
        if isinstance(value, Tensor):
            found.tensors[key] = memory.copy(f"{name}/{key}", check_tensor(f"model.{key}", value).detach())
        else:
            rest[key] = value  # what a module's get_extra_state() gives
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
