"""`quorate.save` and `quorate.load`: keep everything a training needs to go on, and go on from it."""

from __future__ import annotations

import math
from numbers import Real
from pathlib import Path
from typing import Any

from torch import Tensor

from quorate.checkpoint.exports import adopt, export
from quorate.checkpoint.folder import KEPT
from quorate.checkpoint.loading import load as load_here
from quorate.checkpoint.participants import Trained, checkpoint_context, trained
from quorate.checkpoint.saving import CHECKPOINTS, saving
from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell
from quorate.launch.run.folder import new_run_folder
from quorate.launch.worker.gangs import remember_folder
from quorate.launch.worker.other_launchers import name_under_slurm
from quorate.wire import current
from quorate.wire.current import Place


def save(
    to: str | Path | None = None, /, *, keep: int = KEPT, best: float | Tensor | None = None, **extra: Any
) -> None:
    """Keep the training as it is now, in `checkpoints/` of the run's folder; the two newest ones stay.

    Kept are what was given to `distribute` (model, optimizer, the strategy's state, gradients that are pending), the
    positions of loaders, the random generators, and every `extra` that has `state_dict()` and
    `load_state_dict()`: schedulers, scalers. Call it behind `optimizer.step()` and the scheduler's, not between a
    backward pass and its step.

    Under strategies that step together it is taken there and then, if all workers call it at the same step; if only
    some do, all take it behind the next step. Under strategies with rounds any worker may ask for it: every worker
    takes its part at its next batch, backward pass, `save` or end after it has applied the same round, with the extras
    it gave to `load` or `save` last.

    With a path, which every worker gives at the same step, model and optimizer are written there for others: `.pt` for
    `torch.load(weights_only=True)`, `.safetensors` (the model alone), or without a suffix a folder of
    `torch.distributed.checkpoint`. The call returns when it is there; a path that exists is replaced.

    Cost: one copy into memory of the host, on the worker that writes what is equal everywhere; the writing is beside
    the training. A call while the one before is still being written waits for it. A disk that is full ends nothing:
    one line says so, and the checkpoint before stays.

    Raises `ConfigurationError` before `quorate.distribute()`, for an extra without state, and for state that is not
    numbers, text, tensors, and lists, tuples and dicts of these.
    """
    place, value = current.here(), _checked(keep, best)
    if to is not None:
        if keep != KEPT or best is not None:
            raise ConfigurationError("keep and best concern checkpoints of the run; leave them out beside a path")
        export(place, _distributed(place, "quorate.save() keeps"), extra, Path(to))
        return
    _prepare(place, is_needed=True)
    saving(place).save(extra, keep, value)


def _checked(keep: object, best: object) -> float | None:
    """Return `best` as a number, None for NaN. Raises `ConfigurationError` for other values, and a wrong `keep`."""
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ConfigurationError(f"keep is a number of checkpoints (at least 1), not {keep!r}")
    number = best.item() if isinstance(best, Tensor) and best.numel() == 1 else best
    if number is None:
        return None
    if not isinstance(number, Real):
        raise ConfigurationError(f"best is a number, the larger the better, not {best!r}")
    return float(number) if math.isfinite(number) else None


def load(source: str | Path | None = None, /, *, best: bool = False, **extra: Any) -> int | None:
    """Go on from the newest checkpoint of this run's folder; returns how many steps this worker had made.

    None where there is nothing to go on from. Every worker calls it, once, before training and after `distribute` and
    `loader`, with the `extra` objects that are to get their state back. A checkpoint that is damaged is refused with
    one line, and the one before it is used. With another number of workers than it was written by, what
    each had for itself is dealt out by its resize law, and one line says so; the steps are then the mean of theirs.

    With a path, training begins with what is there: a file of `torch.save` (a model's `state_dict()`, or a dictionary
    with "model", "optimizer", "step" and extras, as `save` writes it), a `.safetensors` file, or a folder of
    `torch.distributed.checkpoint`. So a plain script's checkpoint starts a distributed run, whole or in shards. Of a
    file only tensors and plain values are read; torch unpickles the `.metadata` of a folder.

    Raises `CheckpointError` (exit status 2) where there are checkpoints and none can be used, where they are of another
    model or optimizer, and where the strategy's state cannot go on in a world of this size.
    """
    place = current.here()
    if source is not None:
        if best:
            raise ConfigurationError("best concerns checkpoints of the run; leave it out beside a path")
        return adopt(place, _distributed(place, "quorate.load() fills"), extra, Path(source))
    _prepare(place, is_needed=False)
    done = load_here(place, extra, best=best)
    if place.wire.rank == 0:
        if done.step is not None:
            _tell(f"resumed after step {done.step}")
        for sentence in done.sentences:
            _tell(sentence)
    return done.step


def _distributed(place: Place, call: str) -> Trained:
    kept = trained(place)
    if not kept.optimizers:
        raise ConfigurationError(f"{call} distributed optimizers; call it after quorate.distribute()")
    return kept


def _prepare(place: Place, *, is_needed: bool) -> None:
    """A worker on its own gets a folder when it first saves."""
    context = checkpoint_context(place)
    context.tell = context.tell or _tell
    if is_needed and context.root is None and place.wire.size == 1:
        folder = new_run_folder(workers=1, name=name_under_slurm())
        remember_folder(folder)
        _tell(f"checkpoints in {folder}; QUORATE_RUN={folder} goes on from them")
        context.root = folder / CHECKPOINTS


def _tell(sentence: str) -> None:
    tell(f"quorate: {sentence}\n")
