"""The record of how an optimizer was distributed, and of the bytes of a worker between steps, as forecast."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from quorate.checkpoint.participants import Distributed
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.core.strategy import Strategy
from quorate.observe.memory_use import MemoryUse
from quorate.observe.step_times import Timing
from quorate.records.rows import Distribute as DistributeRow
from quorate.replica.optimizer_state import keys_like_parameters
from quorate.sharding.memory import Held, offloaded
from quorate.sharding.parallelize import sharded
from quorate.train.alone import wrapped_class
from quorate.wire.current import Place


def record(place: Place, kept: Distributed, chosen: Strategy | None) -> None:
    """Record the arguments of `distribute`, if the worker keeps records."""
    recorder, optimizer = place.context(Timing).recorder, kept.optimizer
    if recorder is None:
        return
    recorder.write(
        DistributeRow(
            optimizer=kept.name,
            algorithm=wrapped_class(type(optimizer)).__name__,
            strategy=kept.strategy,
            settings=dict(kept.settings),
            replicas_differ=chosen is not None and chosen.replicas != "equal",
            parameters=sum(p.numel() for group in optimizer.param_groups for p in group["params"]),
            learning_rates=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
            **foreseen(place, kept),
        )
    )


def settings_of(chosen: Strategy | None) -> dict[str, object]:
    """Return the settings of a strategy, as plain values; none for None."""
    fields = () if chosen is None else dataclasses.fields(chosen)
    return {field.name: plain_of(getattr(chosen, field.name)) for field in fields}


def plain_of(value: object) -> object:
    """Return `value` as JSON."""
    return value if isinstance(value, bool | int | float | str | None) else str(value)


_COPIES_OF_BATCHES = 2
"""Copies of the parameters under a schedule whose gradients are of the batch before: see `stages.delayed`."""


def foreseen(place: Place, kept: Distributed) -> dict[str, Any]:
    """Return the spread of the model for the row `distribute`, and where memory is recorded, the bytes between steps.

    These are `parameters` (with buffers), `gradients` and `optimizer`; for a model in shards, those of this worker's
    piece. Offloaded bytes are in `host` only. Tensors that several optimizers' models share count once. The state of
    torch's own optimizers is measured by one step on a few numbers. For others `optimizer` is left out.
    """
    spread = sharded(kept.model, place, kept.optimizer)
    how: dict[str, Any] = {} if spread is None else {"zero": spread.zero, "shards": spread.coordinates.axes.shards}
    if spread is not None and spread.plan is not None:
        how["tensor"] = spread.coordinates.axes.tensor
    if spread is not None and spread.pipeline is not None:
        layout = spread.pipeline.layout
        schedule = {"schedule": layout.name, "microbatches": layout.microbatches, "stages": layout.stages}
        how["pipeline"] = {**schedule, "workers": layout.workers, "worker": spread.coordinates.stage}
    return how if place.context(MemoryUse).recorder is None else {**how, "foreseen": _between_steps(place, kept)}


def _between_steps(place: Place, whose: Distributed) -> dict[str, int]:
    use, optimizer, model = place.context(MemoryUse), whose.optimizer, whose.model
    spread = sharded(model, place, optimizer)
    new = {id(x): x for x in (*model.parameters(), *model.buffers()) if id(x) not in use.foreseen}
    use.foreseen |= new.keys()
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    kept = _kept(optimizer, wrapped_class(type(optimizer)))
    is_delayed = spread is not None and spread.pipeline is not None and spread.pipeline.layout.is_delayed
    held = Held(
        parameters=_bytes(new.values()) + (_COPIES_OF_BATCHES * _bytes(trained) if is_delayed else 0),
        gradients=_bytes(trained),
        optimizer=sum(count * _bytes([p]) for p, count in kept or ()),
    )
    if spread is not None and spread.offload is not None:
        held = offloaded(
            held, spread.offload.where, buffers=_bytes(model.buffers()), copies=_bytes(trained),
            masters=_masters(kept or [(p, 0) for p in trained]), delays=spread.offload.delays,
        )  # fmt: skip
    bytes_of = {"parameters": held.parameters, "gradients": held.gradients}
    bytes_of |= {} if kept is None else {"optimizer": held.optimizer}
    return bytes_of if spread is None or spread.offload is None else {**bytes_of, "host": held.host}


def _masters(kept: Sequence[tuple[Tensor, int]]) -> int:
    """Return the bytes of 32-bit copies of tensors of 16 bits, and those that their state takes in 32 bits besides."""
    return sum(4 * local(p).numel() + count * _bytes([p]) for p, count in kept if p.element_size() <= 2)


def _kept(optimizer: Optimizer, plain: type[Optimizer]) -> list[tuple[Tensor, int]] | None:
    """Return the trained parameters, each with the number of tensors like it in the state; None if it is unknown."""
    if not plain.__module__.startswith("torch.optim."):
        return None
    try:
        return [
            (p, count)
            for group in optimizer.param_groups
            for count in [len(keys_like_parameters(plain, group))]
            for p in group["params"]
            if p.requires_grad
        ]
    except (ConfigurationError, AssertionError):  # it needs a closure, or a GPU
        return None


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(local(x).numel() * x.element_size() for x in tensors)
