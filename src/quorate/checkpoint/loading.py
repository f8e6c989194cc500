"""Continuing from a checkpoint: the choice of a usable one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from quorate.checkpoint.folder import best_first, clean_unfinished, complete_ones, verify
from quorate.checkpoint.participants import CheckpointContext, Entered, Trained
from quorate.checkpoint.restoring import restore
from quorate.checkpoint.saving import saving
from quorate.core.contracts import Wire
from quorate.core.errors import CheckpointError, ConfigurationError
from quorate.core.fields import Fields
from quorate.wire.current import Place


@dataclass(frozen=True, slots=True)
class Choice(Fields):
    """The checkpoint to continue from, the same on all workers; and sentences about the choice."""

    name: str | None
    sentences: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    error: str | None = None


@dataclass
class Resumed:
    """The result of `load`."""

    step: int | None
    sentences: list[str]


def load(place: Place, extras: Mapping[str, Any], *, best: bool = False) -> Resumed:
    """Implement `quorate.load`; every worker calls it. The sentences are for the user, on rank 0."""
    everything = place.context(Trained)
    if not everything.optimizers:
        raise ConfigurationError(
            "quorate.load() restores distributed optimizers and loaders; call it after quorate.distribute() "
            "and quorate.loader()"
        )
    everything.check_entered()
    everything.add_extras(extras)
    if everything.entered is not None:
        return Resumed(_enter(everything, everything.entered, extras), [])
    root = place.context(CheckpointContext).root
    if root is None:
        return Resumed(None, [])
    saving(place).flush()
    wire, passed_over = place.wire.channel("checkpoints"), dict[str, str]()
    own = [(entry.optimizer, _options_of(entry.optimizer)) for entry in everything.ordered]
    while True:
        choice = _agreed(place, root, passed_over, best=best)
        if choice.error is not None:
            raise CheckpointError(choice.error)
        saving(place).refused = frozenset(choice.refused)
        if choice.name is None:
            return Resumed(None, choice.sentences)
        sentences, error = choice.sentences, ""
        try:
            sentences = sentences + restore(place, root / choice.name, extras)
        except CheckpointError as why:
            error = str(why)
        carried = torch.frombuffer(bytearray(error.encode() + b" "), dtype=torch.uint8)
        errors = [bytes(x.tolist()).decode().strip() for x in wire.all_gather(carried).wait()]
        if not any(errors):  # all are there: no message of rounds reaches one that is still loading
            return Resumed(everything.first.step, sentences)
        passed_over[choice.name] = next(filter(None, errors))
        for optimizer, options in own:
            _put_back(optimizer, options)  # the next one is compared with the script's options


def _options_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def _put_back(optimizer: Optimizer, options: list[dict[str, Any]]) -> None:
    for group, own in zip(optimizer.param_groups, options, strict=True):
        for key in group.keys() - own.keys() - {"params"}:
            del group[key]
        group.update(own)


def _enter(everything: Trained, entered: Entered, extras: Mapping[str, Any]) -> int:
    """Continue from the worker whose replica a joining worker has; return its number of steps."""
    for name, thing in extras.items():
        if name not in entered.extras:
            raise CheckpointError(f"the workers that are training have not passed {name} to load() or save() yet")
        thing.load_state_dict(entered.extras[name])
    for name, every in entered.options.items():
        for group, options in zip(everything.optimizers[name].optimizer.param_groups, every, strict=True):
            group.update(options)  # a scheduler that was made meanwhile has put its own first numbers there
    return entered.step


def _agreed(place: Place, root: Path, passed_over: Mapping[str, str], *, best: bool) -> Choice:
    """Return rank 0's choice, through the board; checkpoints in `passed_over` could not be loaded."""
    wire: Wire = place.wire
    context = place.context(CheckpointContext)
    context.loads += 1
    key = f"checkpoint to load/{context.loads}"
    if wire.rank == 0:
        if saving(place).has_saved:  # here, and others may still be writing theirs
            wire.board.wait([f"{key}/by {rank}" for rank in wire.alive if rank != 0])
        choice = choose(root, passed_over, best=best)
        wire.board.set(key, choice.to_bytes())
        return choice
    wire.board.set(f"{key}/by {wire.rank}", b"1")
    wire.board.wait([key])
    return Choice.from_bytes(wire.board.get(key) or b"{}")


def choose(root: Path, passed_over: Mapping[str, str] | None = None, *, best: bool = False) -> Choice:
    """Return the newest intact checkpoint in `root`, or the best one; incomplete ones are removed. One in `passed_over`
    is left alone, with the reason for that; it may fit another script. Newer ones than the best are refused, as the
    training takes another course from there."""
    clean_unfinished(root)
    there = complete_ones(root)
    candidates = best_first(root) if best else there
    if there and not candidates:
        sentence = f"no checkpoint in {root} has a value; give one to quorate.save(best=...), or load the newest"
        return Choice(None, error=sentence)
    reasons: list[tuple[str, str]] = []
    refused: list[str] = []
    chosen: str | None = None
    for path in candidates:
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
            refused += [newer.name for newer in there[: there.index(path)] if best]
            break
    if reasons and chosen is None:
        every = "; ".join(f"{name}: {why}" for name, why in reasons)
        return Choice(None, refused=refused, error=f"no checkpoint in {root} can be used ({every})")
    sentences = [f"the checkpoint {name} was refused: {why}; {chosen} is used instead" for name, why in reasons]
    return Choice(chosen, sentences=sentences, refused=refused)
