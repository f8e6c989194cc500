"""States of a model and its optimizer as torch's distributed checkpoints have them: by name, whole or in pieces."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.nn import Module
from torch.optim import Optimizer

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def gathered(model: Module, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both states, with full tensors, on rank 0; every worker calls it."""
    return get_state_dict(model, optimizer, options=_WHOLE)


def spread(model: Module, optimizer: Optimizer, of_model: dict[str, Any], of_optimizer: dict[str, Any] | None) -> None:
    """Load full tensors, which every worker has, into its pieces."""
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, of_model, options=options)
    if of_optimizer is not None:
        set_optimizer_state_dict(model, optimizer, of_optimizer, options=options)


def write_folder(
    model: Module, optimizer: Optimizer, step: int, folder: Path, plain: type[Optimizer] | None, *, is_alone: bool
) -> None:
    """Write a checkpoint of torch, in pieces where the model is in pieces; every worker calls it.

    `plain` is the optimizer's own class where this worker has the full state, and alone calls this; None elsewhere.
    """
    is_new = not optimizer.state
    with _stepping_alone(optimizer, plain):
        of_model, of_optimizer = get_state_dict(model, optimizer)
    with _alone():
        dcp.save({"model": of_model, "optimizer": of_optimizer, "step": step}, checkpoint_id=folder, no_dist=is_alone)
    if is_new and plain is not None:  # torch has made a state
        optimizer.state.clear()


def read_folder(
    model: Module, optimizer: Optimizer, folder: Path, plain: type[Optimizer] | None, *, is_alone: bool
) -> int:
    """Read each worker's pieces; return the step of the checkpoint. `plain` is as of `write_folder`."""
    with _stepping_alone(optimizer, plain):
        of_model, of_optimizer = get_state_dict(model, optimizer)
        state: dict[str, Any] = {"model": of_model, "optimizer": of_optimizer, "step": 0}
        with _alone():
            dcp.load(state, checkpoint_id=folder, no_dist=is_alone)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    if state["step"] == 0 and plain is not None:
        optimizer.state.clear()
    return int(state["step"])


@contextmanager
def _stepping_alone(optimizer: Optimizer, plain: type[Optimizer] | None) -> Iterator[None]:
    """Inside, `optimizer.step` is that of `plain`, in which no other worker takes part.

    torch makes a step with learning rate 0 of an optimizer that has neither a state nor gradients.
    """
    if plain is None:
        yield
        return
    own: dict[str, Any] = optimizer.__dict__
    before = {"step": own["step"]} if "step" in own else {}
    own["step"] = partial(plain.step, optimizer)
    try:
        yield
    finally:
        del own["step"]
        own.update(before)


@contextmanager
def _alone() -> Iterator[None]:
    """Inside, torch does not warn that one process writes or reads by itself: it is asked to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield
