"""`quorate.save` and `quorate.load`: keep everything a training needs to go on, and go on from it."""

from __future__ import annotations

import math
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quorate.checkpoint.folder import KEPT
from quorate.checkpoint.participants import CheckpointContext, Trained
from quorate.checkpoint.saving import CHECKPOINTS, saving
from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell
from quorate.launch.run.folder import new_run_folder
from quorate.launch.worker.gangs import remember_folder
from quorate.launch.worker.other_launchers import name_under_slurm
from quorate.observe.step_times import Timing
from quorate.wire import current
from quorate.wire.current import Place


@torch.inference_mode(False)  # the training keeps tensors from a pause
def save(
    to: str | Path | None = None,
    /,
    *,
    keep: int = KEPT,
    best: float | Tensor | None = None,
    trained_only: bool = False,
    **extra: Any,
) -> None:
    """Save the training in `checkpoints/` of the run's folder, or model and optimizer in a file for other programs.

    A checkpoint contains what was passed to `distribute` (model, optimizer, the strategy's state, pending gradients),
    the positions of loaders, the random generators, and `extra`. Call it after `optimizer.step()` and the scheduler's
    step, not between a backward pass and its step.

    Under strategies that step together it is taken at once if all workers call it at the same step; if only some do,
    all take it after the next step. Under strategies with rounds any worker may call it. Every worker takes its part
    after it has applied the same round, at its next batch, backward pass, `save` or end. It saves the extras that it
    passed to `load` or `save` last.

    Args:
        to: A path, the same on every worker and at the same step, to which model and optimizer are written. `.pt` is a
            file for `torch.load(weights_only=True)`, `.safetensors` has the model alone. Without a suffix it is a
            folder of `torch.distributed.checkpoint`. The call returns when it is written; an existing path is replaced.
        keep: How many of the newest checkpoints are kept (at least 1); the largest number of all workers counts.
        best: The value of this state, the larger the better (of a loss, its negative); the checkpoint with the largest
            value is kept as well. Every worker passes the same; under rounds the call then waits for all workers. NaN
            and infinite values count as none.
        trained_only: Whether the base of the model, its parameters that are not trained, is left out, as beside
            adapters. The manifest, or the file, has the digest of the base, and `quorate.load` compares it with that of
            the script's model. All workers pass the same.
        extra: Objects with `state_dict()` and `load_state_dict()`, by name: schedulers, scalers.

    Raises:
        ConfigurationError: `quorate.distribute()` was not called, an extra has no state, or its state is not numbers,
            text, tensors, and lists, tuples and dicts of these.

    Cost: one copy into host memory, on the worker that writes the state that is equal everywhere; the training goes on
    while it is written. A call waits for the previous checkpoint. A full disk ends nothing: one line says so, and the
    previous checkpoint stays.

    Example:
        >>> optimizer = quorate.distribute(optimizer, model)
        >>> quorate.save(folder / "model.safetensors")
        >>> quorate.save(scheduler=scheduler, keep=3, best=0.93)
    """
    place, value = current.here(), _checked(keep, best)
    if trained_only:
        _check_trained_only(place.context(Trained), trained_only)
    if to is not None:
        if keep != KEPT or best is not None:
            raise ConfigurationError("keep and best concern checkpoints of the run; leave them out beside a path")
        from quorate.checkpoint.exports import export

        export(place, _distributed(place, "quorate.save() keeps"), extra, Path(to), trained_only=trained_only)
        return
    _prepare(place, is_needed=True)
    saving(place).save(extra, keep, value, trained_only=trained_only)


def _check_trained_only(kept: Trained, trained_only: object) -> None:
    if trained_only is not True:
        raise ConfigurationError(f"trained_only must be True or False, not {trained_only!r}")
    if any(entry.coordinates is not None for entry in kept.optimizers.values()):
        raise ConfigurationError("trained_only needs a model that each worker holds completely, without shards")


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
    """Continue from the newest checkpoint of this run's folder, or begin with the model and optimizer of a file.

    Every worker calls it once, after `distribute` and `loader` and before the training. A damaged checkpoint is refused
    with one line, and the previous one is used. With another number of workers, per-worker state is redistributed by
    the resize law of the strategy; one line says so, and the number of steps is the workers' mean.

    Args:
        source: A path: a file of `torch.save`, a `.safetensors` file, or a folder of `torch.distributed.checkpoint`. A
            file of `torch.save` has a model's `state_dict()`, or a dictionary with "model", "optimizer", "step" and
            extras, as `save` writes it. Of a file only tensors and plain values are read; torch unpickles the
            `.metadata` of a folder.
        best: Whether to continue from the checkpoint with the largest value (`quorate.save(best=...)`). Later
            checkpoints are removed once a new one is complete.
        extra: The objects that receive their state, by the names under which they were saved.

    Returns:
        The number of steps that this worker has made; None if there is no checkpoint.

    Raises:
        CheckpointError: There are checkpoints and none can be used, or they are of another model or optimizer. Also if
            the strategy's state does not fit a world of this size (exit status 2).
        ConfigurationError: `quorate.distribute()` was not called.

    Example:
        >>> optimizer = quorate.distribute(optimizer, model)
        >>> step = quorate.load(scheduler=scheduler) or 0
    """
    place = current.here()
    if source is not None:
        if best:
            raise ConfigurationError("best concerns checkpoints of the run; leave it out beside a path")
        from quorate.checkpoint.exports import adopt

        return adopt(place.context(Timing), _distributed(place, "quorate.load() fills"), extra, Path(source))
    _prepare(place, is_needed=False)
    from quorate.checkpoint.loading import load as load_here  # not in a step that saves

    done = load_here(place, extra, best=best)
    if place.wire.rank == 0:
        if done.step is not None:
            _tell(f"resumed after step {done.step}")
        for sentence in done.sentences:
            _tell(sentence)
    return done.step


def _distributed(place: Place, call: str) -> Trained:
    kept = place.context(Trained)
    if not kept.optimizers:
        raise ConfigurationError(f"{call} distributed optimizers; call it after quorate.distribute()")
    return kept


def _prepare(place: Place, *, is_needed: bool) -> None:
    """A worker on its own gets a folder when it first saves."""
    context = place.context(CheckpointContext)
    context.listeners = context.listeners or [_tell]
    if is_needed and context.root is None and place.wire.size == 1:
        folder = new_run_folder(workers=1, name=name_under_slurm())
        remember_folder(folder)
        _tell(f"checkpoints in {folder}; QUORATE_RUN={folder} goes on from them")
        context.root = folder / CHECKPOINTS


def _tell(sentence: str) -> None:
    tell(f"quorate: {sentence}\n")
