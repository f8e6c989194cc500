"""Going on from a checkpoint: which one can be used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from quorate.checkpoint.folder import clean_unfinished, complete_ones, verify
from quorate.checkpoint.participants import Entered, Trained, checkpoint_context, trained
from quorate.checkpoint.restoring import restore
from quorate.checkpoint.saving import saving
from quorate.core.contracts import Wire
from quorate.core.errors import CheckpointError, ConfigurationError
from quorate.wire.current import Place


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
            "quorate.load() restores distributed optimizers and loaders; call it after quorate.distribute() "
            "and quorate.shard()"
        )
    everything.check_entered()
    everything.add_extras(extras)
    if everything.entered is not None:
        return Resumed(_enter(everything, everything.entered, extras), [])
    root = checkpoint_context(place).root
    if root is None:
        return Resumed(None, [])
    wire, passed_over = place.wire.channel("checkpoints"), dict[str, str]()
    own = [(one.optimizer, _options_of(one.optimizer)) for one in everything.ordered]
    while True:
        found = _agreed(place, root, passed_over)
        if found.error is not None:
            raise CheckpointError(found.error)
        saving(place).refused = frozenset(found.refused)
        if found.name is None:
            return Resumed(None, found.sentences)
        sentences, error = found.sentences, ""
        try:
            sentences = sentences + restore(place, root / found.name, extras)
        except CheckpointError as why:
            error = str(why)
        carried = torch.frombuffer(bytearray(error.encode() + b" "), dtype=torch.uint8)
        told = [bytes(x.tolist()).decode().strip() for x in wire.all_gather(carried).wait()]
        if not any(told):  # all are there: nobody speaks of rounds to one that is not there yet
            return Resumed(everything.first.step, sentences)
        passed_over[found.name] = next(filter(None, told))
        for optimizer, options in own:
            _put_back(optimizer, options)  # the next one is held against what the script has said


def _options_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def _put_back(optimizer: Optimizer, options: list[dict[str, Any]]) -> None:
    for group, own in zip(optimizer.param_groups, options, strict=True):
        for key in group.keys() - own.keys() - {"params"}:
            del group[key]
        group.update(own)


def _enter(everything: Trained, entered: Entered, extras: Mapping[str, Any]) -> int:
    """A worker that joined goes on from where the one is whose replica it has; the steps that one had made."""
    for name, thing in extras.items():
        if name not in entered.extras:
            raise CheckpointError(f"the workers that are training have not passed {name} to load() or save() yet")
        thing.load_state_dict(entered.extras[name])
    for name, every in entered.options.items():
        for group, options in zip(everything.optimizers[name].optimizer.param_groups, every, strict=True):
            group.update(options)  # a scheduler that was made meanwhile has put its own first numbers there
    return entered.step


def _agreed(place: Place, root: Path, passed_over: Mapping[str, str]) -> Found:
    """Rank 0 looks, and tells the others over the board; what was `passed_over` could not be loaded."""
    wire: Wire = place.wire
    context = checkpoint_context(place)
    context.loads += 1
    key = f"checkpoint to load/{context.loads}"
    if wire.rank == 0:
        found = choose(root, passed_over)
        wire.board.set(key, json.dumps(vars(found)).encode())
        return found
    wire.board.wait([key])
    return Found(**json.loads(wire.board.get(key) or b"{}"))


def choose(root: Path, passed_over: Mapping[str, str] | None = None) -> Found:
    """The newest checkpoint in `root` that is what was written; what was never completed is removed.

    One that was `passed_over` is left alone, with the reason for that; it may be right for another script.
    """
    clean_unfinished(root)
    reasons: list[tuple[str, str]] = []
    refused: list[str] = []
    chosen: str | None = None
    for path in complete_ones(root):
        if passed_over is not None and path.name in passed_over:
            reasons.append((path.name, passed_over[path.name]))
            continue
        try:
            verify(path)
        except CheckpointError as error:
            reasons.append((path.name, str(error)))
            refused.append(path.name)
        else:
            chosen = path.name
            break
    if reasons and chosen is None:
        every = "; ".join(f"{name}: {why}" for name, why in reasons)
        return Found(None, refused=refused, error=f"no checkpoint in {root} can be used ({every})")
    told = [f"the checkpoint {name} was refused: {why}; {chosen} is used instead" for name, why in reasons]
    return Found(chosen, sentences=told, refused=refused)
