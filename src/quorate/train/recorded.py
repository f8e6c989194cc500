"""The record of how an optimizer was distributed, and of the bytes that a worker will hold between steps, as far as
they are known before the first one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from quorate.checkpoint.participants import Distributed
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.core.strategy import Strategy
from quorate.observe.memory_use import memory_use
from quorate.observe.step_times import timing
from quorate.records.rows import Distribute as DistributeRow
from quorate.replica.optimizer_state import keys_like_parameters
from quorate.sharding.offload import Offloaded
from quorate.sharding.parallelize import sharded
from quorate.wire.current import Place


def record(place: Place, kept: Distributed, chosen: Strategy | None) -> None:
    """What was chosen, into the records of the worker, where it keeps some."""
    recorder, optimizer = timing(place).recorder, kept.optimizer
    if recorder is None:
        return
    recorder.write(
        DistributeRow(
            optimizer=kept.name,
            algorithm=type(optimizer).__mro__[2].__name__,
            strategy=kept.strategy,
            settings=dict(kept.settings),
            replicas_differ=chosen is not None and chosen.replicas != "equal",
            parameters=sum(p.numel() for group in optimizer.param_groups for p in group["params"]),
            learning_rates=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
            **foreseen(place, kept),
        )
    )


def settings_of(chosen: Strategy | None) -> dict[str, object]:
    """Its settings, as plain values; none for None."""
    fields = () if chosen is None else dataclasses.fields(chosen)
    return {field.name: plain_of(getattr(chosen, field.name)) for field in fields}


def plain_of(value: object) -> object:
    """As JSON takes it."""
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def foreseen(place: Place, kept: Distributed) -> dict[str, Any]:
    """For the row `distribute`: how the model is spread; and where memory is recorded, the bytes between steps.

    These are `parameters` (with buffers), `gradients` and `optimizer`; of a model in shards, of this worker's piece.
    What is offloaded is `host`, and not in them.
    What several optimizers' models have in common counts once. Only of torch's own optimizers it is known what they
    keep: by one step on a few numbers. Of others `optimizer` is left out.
    """
    spread = sharded(kept.model, place, kept.optimizer)
    how: dict[str, Any] = {} if spread is None else {"zero": spread.zero, "shards": spread.seat.axes.shards}
    if spread is not None and spread.plan is not None:
        how["tensor"] = spread.seat.axes.tensor
    if spread is not None and spread.pipeline is not None:
        layout = spread.pipeline.layout
        told = {"schedule": layout.schedule, "microbatches": layout.microbatches, "stages": layout.stages}
        how["pipeline"] = {**told, "workers": layout.workers, "worker": spread.seat.stage}
    return how if memory_use(place).recorder is None else {**how, "foreseen": _between_steps(place, kept)}


def _between_steps(place: Place, whose: Distributed) -> dict[str, int]:
    use, optimizer, model = memory_use(place), whose.optimizer, whose.model
    spread = sharded(model, place, optimizer)
    new = {id(x): x for x in (*model.parameters(), *model.buffers()) if id(x) not in use.told}
    use.told |= new.keys()
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    found = {"parameters": _bytes(new.values()), "gradients": _bytes(p for p in trained if p.requires_grad)}
    kept = _kept(optimizer, type(optimizer).__mro__[2])
    found |= {} if kept is None else {"optimizer": kept}
    return found if spread is None or spread.offload is None else _with_host(found, spread.offload, trained, model)


def _with_host(found: dict[str, int], how: Offloaded, trained: Sequence[Tensor], model: Module) -> dict[str, int]:
    """What is on the device, and `host`; where it is not known what the optimizer keeps, without that."""
    stepped = [p for p in trained if p.requires_grad]
    kept = found.get("optimizer", 0)
    zeros = {name: 0 for name in ("optimizer",) if name in found}
    masters = sum(4 * local(p).numel() for p in stepped if p.element_size() <= 2)
    if masters:
        kept *= 2  # of 16 bits, the optimizer keeps 32
    if how.where == "all":
        buffers = _bytes(model.buffers())
        copies = _bytes(stepped) + found["gradients"] if how.delays else 0
        host = found["parameters"] - buffers + found["gradients"] + kept + masters + copies
        return {"parameters": buffers, "gradients": 0, **zeros, "host": host}
    return {**found, **zeros, "host": _bytes(stepped) + found["gradients"] + kept + masters}


def _kept(optimizer: Optimizer, plain: type[Optimizer]) -> int | None:
    if not plain.__module__.startswith("torch.optim."):
        return None
    try:
        return sum(
            len(keys_like_parameters(plain, group)) * _bytes(p for p in group["params"] if p.requires_grad)
            for group in optimizer.param_groups
        )
    except (ConfigurationError, AssertionError):  # it has to be called with a closure, or only works on a GPU
        return None


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(local(x).numel() * x.element_size() for x in tensors)
