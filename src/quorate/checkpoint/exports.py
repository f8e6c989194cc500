"""The model, and its optimizer, in files of other libraries: `torch.load`, safetensors, torch's distributed
checkpoints.

| form | holds | read by |
|---|---|---|
| `.pt`, `.pth` | model, optimizer, steps, extras | `torch.load(path, weights_only=True)` |
| `.safetensors` | model | `safetensors.torch.load_file(path)` |
| a folder | model, optimizer, steps | `torch.distributed.checkpoint.load(state, checkpoint_id=folder)` |

Written to a new place beside `path`, and renamed. Cost: a model in shards is gathered on every worker for a file,
and stays in pieces for a folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.checkpoint.frozen import BASE, base_digest, base_of, check_base, without_base
from quorate.checkpoint.participants import Distributed, Trained, set_steps
from quorate.checkpoint.restoring import give_forms_of
from quorate.checkpoint.tensor_file import read_tensors
from quorate.core.errors import CheckpointError, ConfigurationError, WireTimeout, ranks_in_words
from quorate.data.context import DataContext
from quorate.observe.step_times import Timing
from quorate.wire.current import Place

Form = Literal["torch", "safetensors", "folder"]
_SUFFIXES: dict[str, Form] = {".pt": "torch", ".pth": "torch", ".safetensors": "safetensors", "": "folder"}
_MODELS = ("model", "model_state_dict", "state_dict", "module")
"""Keys under which other libraries keep the model."""
_OPTIMIZERS = ("optimizer", "optimizer_state_dict")
_WRAPPERS = ("module.", "_orig_mod.")
"""Prefixes of names from DDP and torch.compile."""


def form_of(path: Path) -> Form:
    """Return the form of a file by its suffix. Raises `ConfigurationError` for an unknown one."""
    if path.suffix not in _SUFFIXES:
        raise ConfigurationError(
            f'"{path.name}" has the suffix {path.suffix}; known: .pt and .pth (torch), .safetensors, and none, for a '
            "folder of torch.distributed.checkpoint"
        )
    return _SUFFIXES[path.suffix]


def export(
    place: Place, everything: Trained, extras: Mapping[str, Any], path: Path, *, trained_only: bool = False
) -> None:
    """Write the training to `path`; every worker calls it, and rank 0 writes a file.

    With `trained_only` the model is without its base, of which a `.safetensors` file has the digest.
    """
    form, entry = form_of(path), _only(everything)
    if trained_only and form == "folder":
        raise ConfigurationError("trained_only needs a file (.safetensors or .pt), or no path at all")
    if entry.is_apart and not place.context(DataContext).is_evaluating:
        raise ConfigurationError(
            f"under {entry.strategy} replicas differ between steps, so there is no single model to write; call "
            "it inside `with world.evaluate():`, where the model is their mean"
        )
    _check_layout(entry)
    new = path.with_name(f".writing-{path.name}")
    if form == "folder":
        _write_folder(place, entry, path, new)
        return
    model, optimizer = _states(entry)
    about = None
    if trained_only:
        model, about = without_base(model, entry.model), {BASE: base_digest(entry.model)}
    error = ""
    if place.wire.rank == 0:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if form == "safetensors":
                from safetensors.torch import save_file

                tensors = {key: x.contiguous().clone() for key, x in model.items() if isinstance(x, Tensor)}
                save_file(tensors, new, about)
            else:
                kept = {name: thing.state_dict() for name, thing in extras.items()}
                step = {"step": entry.step, **(about or {})}
                torch.save({"model": model, "optimizer": optimizer, **step, **kept}, new)
            os.replace(new, path)
        except OSError as why:
            error = f"{path} cannot be written: {why.strerror or why}"
            with suppress(OSError):
                new.unlink()
    _agree(place, path, error)


def adopt(timing: Timing, everything: Trained, extras: Mapping[str, Any], path: Path) -> int | None:
    """Begin with the state in `path`; every worker calls it. Return the steps that it records, or None. Raises
    `CheckpointError` for a path that does not exist, does not hold a model, or is of another model."""
    form, entry = form_of(path), _only(everything)
    if not path.exists():
        raise CheckpointError(f"there is no {path}")
    _check_layout(entry)
    is_folder = form == "folder"
    step = _read_folder(entry, path) if is_folder else _take(entry, extras, _read_file(path, form), path)
    if step is not None:
        set_steps(timing, entry, step, 0)
    return step


def _only(everything: Trained) -> Distributed:
    if len(everything.optimizers) != 1:
        raise ConfigurationError(
            f"a file for others holds one optimizer's training, and {len(everything.optimizers)} were distributed"
        )
    return everything.first


def _check_layout(entry: Distributed) -> None:
    if entry.pipeline is not None or entry.parts > 1:
        raise ConfigurationError(
            "a model in stages, or along a tensor axis, is in files for others only after quorate.save() and "
            "quorate.load() in another layout; leave the path out"
        )
    if entry.owned is not None:
        raise ConfigurationError(
            "an optimizer that steps on full tensors keeps its state with their owners, and torch cannot gather it; "
            "leave the path out: quorate.save() keeps all"
        )


def _states(entry: Distributed) -> tuple[dict[str, Any], dict[str, Any]]:
    if entry.coordinates is None:
        return {key: _copied(x) for key, x in entry.model.state_dict().items()}, entry.optimizer.state_dict()
    from quorate.sharding.torch_states import gathered

    return gathered(entry.model, entry.optimizer)


def _copied(x: Any) -> Any:
    return x.detach().cpu() if isinstance(x, Tensor) else x


def _write_folder(place: Place, entry: Distributed, path: Path, new: Path) -> None:
    from quorate.sharding.torch_states import write_folder

    if entry.coordinates is not None or place.wire.rank == 0:
        is_alone = entry.coordinates is None
        write_folder(entry.model, entry.optimizer, entry.step, new, _plain(entry), is_alone=is_alone)
    error = ""
    if place.wire.rank == 0:
        try:
            if path.exists():
                shutil.rmtree(path)
            os.replace(new, path)
        except OSError as why:
            error = f"{path} cannot be written: {why.strerror or why}"
    _agree(place, path, error)


def _plain(entry: Distributed) -> type[Optimizer] | None:
    """Return the optimizer's own class where each worker has its full state; None elsewhere."""
    return None if entry.worker is None or entry.coordinates is not None else entry.worker.replica.plain


def _read_folder(entry: Distributed, path: Path) -> int:
    from quorate.sharding.torch_states import read_folder

    try:
        return read_folder(entry.model, entry.optimizer, path, _plain(entry), is_alone=entry.coordinates is None)
    except Exception as error:  # any kind that torch raises for unreadable files
        raise CheckpointError(f"{path} is not a checkpoint of this model: {_last_line(error)}") from None


def _read_file(path: Path, form: Form) -> dict[str, Any]:
    try:
        if form == "safetensors":
            tensors, about = read_tensors(path)
            return {"model": tensors, BASE: about.get(BASE)}
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's kinds, pickle's, zipfile's and safetensors', for bytes that may be anything
        raise CheckpointError(f"{path} cannot be read: {_last_line(error)}") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds a {type(state).__name__}, and no state of a model")
    return state


def _take(entry: Distributed, extras: Mapping[str, Any], saved: dict[str, Any], path: Path) -> int | None:
    model = next((saved[name] for name in _MODELS if isinstance(saved.get(name), dict)), saved)
    optimizer = next((saved[name] for name in _OPTIMIZERS if isinstance(saved.get(name), dict)), None)
    for wrapper in _WRAPPERS:
        if all(isinstance(key, str) and key.startswith(wrapper) for key in model):
            model = {key.removeprefix(wrapper): x for key, x in model.items()}
    try:
        give_forms_of(entry, model)
        if isinstance(base := saved.get(BASE), str):
            check_base(entry.model, base, path.name)
        if entry.coordinates is None:
            missing = set(base_of(entry.model)) if isinstance(base, str) else set()
            kept = {key: x for key, x in entry.model.state_dict().items() if key in missing}
            entry.model.load_state_dict({**kept, **model})
            if optimizer is not None:
                entry.optimizer.load_state_dict(optimizer)
        else:
            from quorate.sharding.torch_states import spread

            spread(entry.model, entry.optimizer, model, None if optimizer is None else _by_name(entry, optimizer))
    except Exception as error:  # what others have written may lack anything that torch asks for
        raise CheckpointError(f"{path} is of another model or optimizer: {_last_line(error)}") from None
    for name, thing in extras.items():
        if isinstance(saved.get(name), dict):
            thing.load_state_dict(saved[name])
    step = saved.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def _by_name(entry: Distributed, state: dict[str, Any]) -> dict[str, Any]:
    if all(isinstance(key, str) for key in state["state"]):
        return state
    names = {id(p): name for name, p in entry.model.named_parameters()}
    order = [names[id(p)] for p in entry.parameters]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    name_of = dict(zip(numbers, order, strict=True))
    groups = [{**group, "params": [name_of[n] for n in group["params"]]} for group in state["param_groups"]]
    return {"state": {name_of[n]: kept for n, kept in state["state"].items()}, "param_groups": groups}


def _agree(place: Place, path: Path, error: str) -> None:
    """Share rank 0's error with all workers; raises it on all."""
    wire = place.wire.channel(f"export/{path.name}/{_count(place)}")
    own = torch.frombuffer(bytearray(error.encode().ljust(512)[:512]), dtype=torch.uint8)
    try:
        received = wire.broadcast(own, 0).wait()
    except WireTimeout as late:
        raise WireTimeout(
            f"rank {wire.rank} waited {wire.timeout:g} s for {ranks_in_words(late.ranks)} in quorate.save() of "
            f"{path.name}; all workers call it, with the same path and after the same step",
            late.ranks,
        ) from None
    said = bytes(received.tolist()).decode(errors="replace").strip()
    if said:
        raise CheckpointError(said)


class _Exports:
    """The number of exports."""

    count = 0


def _count(place: Place) -> int:
    context = place.context(_Exports)
    context.count += 1
    return context.count


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
