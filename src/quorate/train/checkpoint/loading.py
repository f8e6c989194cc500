"""Going on from a checkpoint: which one can be used, and how a worker becomes what it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quorate.core.contracts import Wire
from quorate.core.errors import CheckpointError, ConfigurationError
from quorate.data.resuming import go_on
from quorate.train.checkpoint import generators
from quorate.train.checkpoint.encoding import ABOUT, decoded
from quorate.train.checkpoint.folder import clean_unfinished, complete_ones, read_manifest, verify
from quorate.train.checkpoint.optimizers import restore_optimizer
from quorate.train.checkpoint.parts import STRATEGY, others_of, rank_file
from quorate.train.checkpoint.saving import ROOT, saving
from quorate.train.checkpoint.strategy_state import restore_state
from quorate.train.checkpoint.tensor_file import read_tensors
from quorate.train.checkpoint.trained import ENTERED, Distributed, Entered, set_steps, trained
from quorate.wire.current import Place

_LOADS = "loads"


@dataclass
class Found:
    """The checkpoint to go on from, the same on all workers; and what is to be said about the choice."""

    name: str | None
    sentences: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    error: str | None = None


@dataclass
class Resumed:
    """What `load` has done."""

    step: int | None
    sentences: list[str]


def load(place: Place, extras: Mapping[str, Any]) -> Resumed:
    """See `quorate.load`; every worker calls it. The sentences are for the user, on rank 0."""
    everything = trained(place)
    if not everything.optimizers:
        raise ConfigurationError(
            "quorate.load() gives back what was distributed; call it after quorate.distribute() and quorate.shard()"
        )
    everything.add_extras(extras)
    if ENTERED in place.kept:
        return Resumed(_enter(everything.first, place.kept[ENTERED], extras), [])
    root: Path | None = place.kept.get(ROOT)
    if root is None:
        return Resumed(None, [])
    found = _agreed(place, root)
    if found.error is not None:
        raise CheckpointError(found.error)
    saving(place).refused = frozenset(found.refused)
    if found.name is None:
        return Resumed(None, found.sentences)
    sentences = found.sentences + _restore(place, root / found.name, extras)
    place.wire.channel("checkpoints").barrier().wait()  # nobody speaks of rounds to one that is not there yet
    return Resumed(everything.first.step, sentences)


def _enter(one: Distributed, entered: Entered, extras: Mapping[str, Any]) -> int:
    """A worker that joined goes on from where the one is whose replica it has; the steps that one had made."""
    for name, thing in extras.items():
        if name not in entered.extras:
            raise CheckpointError(f"the workers that train have not given {name} to load() or save() yet")
        thing.load_state_dict(entered.extras[name])
    for group, options in zip(one.optimizer.param_groups, entered.options, strict=True):
        group.update(options)  # a scheduler that was made meanwhile has put its own first numbers there
    return entered.step


def _agreed(place: Place, root: Path) -> Found:
    """Rank 0 looks, and tells the others over the board."""
    wire: Wire = place.wire
    count = place.kept[_LOADS] = place.kept.get(_LOADS, 0) + 1
    key = f"checkpoint to load/{count}"
    if wire.rank == 0:
        found = choose(root)
        wire.board.set(key, json.dumps(vars(found)).encode())
        return found
    wire.board.wait([key])
    return Found(**json.loads(wire.board.get(key) or b"{}"))


def choose(root: Path) -> Found:
    """The newest checkpoint in `root` that is what was written; what was never completed is removed."""
    clean_unfinished(root)
    refused: list[tuple[str, str]] = []
    chosen: str | None = None
    for path in complete_ones(root):
        try:
            verify(path)
        except CheckpointError as error:
            refused.append((path.name, str(error)))
        else:
            chosen = path.name
            break
    names = [name for name, _ in refused]
    if refused and chosen is None:
        every = "; ".join(f"{name}: {why}" for name, why in refused)
        return Found(None, refused=names, error=f"no checkpoint in {root} can be used ({every})")
    told = [f"the checkpoint {name} was refused: {why}; {chosen} is used instead" for name, why in refused]
    return Found(chosen, sentences=told, refused=names)


def _restore(place: Place, folder: Path, extras: Mapping[str, Any]) -> list[str]:
    rank, size = place.wire.rank, place.wire.size
    manifest = read_manifest(folder)
    past = int(manifest["workers"])
    workers = [_read(folder / rank_file(other)) for other in manifest.get("ranks", range(past))]
    everything = trained(place)
    sentences = [] if past == size else [f"resumed with {size} workers what {past} have begun"]
    shared = _read(folder / STRATEGY) if STRATEGY in manifest["files"] else {}
    for one in everything.ordered:
        about = manifest["optimizers"].get(one.name)
        if about is None:
            known = ", ".join(sorted(manifest["optimizers"]))
            raise CheckpointError(f'{folder.name} has no optimizer "{one.name}"; it has {known}')
        _restore_model(one, folder / about["model"])
        restore_optimizer(one, _read(folder / about["optimizer"], is_whole=True))
        kept = shared.get(one.name, {"others": [], "state": {}})
        _copy_all(others_of(one), kept["others"], f"parameters that {folder.name} keeps beside its model")
        olds = [worker["optimizers"][one.name] for worker in workers]
        _restore_own(place, one, olds, rank, size)
        sentences += restore_state(one, about["strategy"], kept["state"], olds, rank, size)
        if one.worker is not None:
            one.worker.strategy.resumed(one.worker)
    saving(place).go_on(int(manifest["step"]))
    go_on(place, [worker["loaders"] for worker in workers])
    _restore_extras(folder, extras, workers, rank)
    generators_of = [worker["generators"] for worker in workers]
    if rank < past:
        generators.restore(generators_of[rank])
    return sentences


def _read(path: Path, *, is_whole: bool = False) -> Any:
    tensors, about = read_tensors(path)
    if ABOUT not in about:
        raise CheckpointError(f"{path.parent.name}/{path.name} says nothing beside its tensors")
    return decoded(about[ABOUT], tensors)


def _restore_model(one: Distributed, path: Path) -> None:
    tensors, about = read_tensors(path)
    rest = decoded(about[ABOUT], tensors) if ABOUT in about else {}
    own = one.model.state_dict()
    state = {key: x for key, x in tensors.items() if key in own or not rest} | rest
    for key in own.keys() ^ state.keys():
        where = f"the script's model has a {key}, and the checkpoint's has none"
        raise CheckpointError(where if key in own else f"the checkpoint's model has a {key}, and the script's has none")
    for key, x in state.items():
        mine = own[key]
        if isinstance(x, Tensor) and isinstance(mine, Tensor) and x.shape != mine.shape:
            raise CheckpointError(
                f"{key} has the shape {tuple(x.shape)} in the checkpoint, and {tuple(mine.shape)} here"
            )
    try:
        one.model.load_state_dict(state)
    except RuntimeError as error:
        why = str(error).splitlines()[-1].strip()
        raise CheckpointError(f"the model does not take what was kept of it: {why}") from error


def _copy_all(there: Sequence[Tensor], kept: list[Tensor], what: str) -> None:
    if [x.shape for x in there] != [x.shape for x in kept]:
        raise CheckpointError(f"the {what} are not those of the script's optimizer")
    with torch.no_grad():
        for mine, x in zip(there, kept, strict=True):
            mine.copy_(x)


def _restore_own(place: Place, one: Distributed, olds: list[dict[str, Any]], rank: int, size: int) -> None:
    """What each worker has for itself; in a world of another size a new worker takes after rank 0."""
    old = olds[rank] if rank < len(olds) else olds[0]
    same = len(olds) == size
    kept = [other["replica"] for other in olds]
    if one.is_apart and all(replica is not None for replica in kept):
        _restore_replica(one, kept, rank, size)
    for group, options in zip(one.optimizer.param_groups, old["options"], strict=True):
        group.update(options)
    buffers = dict(one.model.named_buffers())
    with torch.no_grad():
        for name, x in old["buffers"].items():
            if name in buffers:
                buffers[name].copy_(x)
    step = old["step"] if same else round(sum(other["step"] for other in olds) / len(olds))
    set_steps(place, one, step, old["updates"])


def _restore_replica(one: Distributed, kept: list[dict[str, Any]], rank: int, size: int) -> None:
    """Each worker's own; in a world of another size everyone begins at the mean of the old replicas."""
    if len(kept) == size:
        restore_optimizer(one, kept[rank]["optimizer"])
        numbers = kept[rank]["parameters"]
    else:
        columns = zip(*(replica["parameters"] for replica in kept), strict=True)
        numbers = [torch.stack([x.double() for x in column]).mean(0) for column in columns]
    _copy_all(one.parameters, numbers, "parameters of the replicas")


def _restore_extras(folder: Path, extras: Mapping[str, Any], workers: list[dict[str, Any]], rank: int) -> None:
    order = [*([rank] if rank < len(workers) else []), *range(len(workers))]
    for name, thing in extras.items():
        kept = next((workers[other]["extras"][name] for other in order if name in workers[other]["extras"]), None)
        if kept is None:
            known = ", ".join(sorted({key for worker in workers for key in worker["extras"]})) or "nothing"
            raise CheckpointError(
                f"{folder.name} keeps no {name}; besides model and optimizer it keeps {known}, as was given to save()"
            )
        thing.load_state_dict(kept)
