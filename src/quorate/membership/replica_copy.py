"""One worker's replica for another that misses rounds, or joins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module

from quorate.agreement.equal_replicas import beside, optimizer_from_plain, optimizer_to_plain, write_back
from quorate.buckets.flat import pack
from quorate.checkpoint.encoding import decoded, encoded
from quorate.checkpoint.participants import Entered, trained
from quorate.checkpoint.vectors import flats_as_parts, parts_as_flats
from quorate.core.resize import laws_of
from quorate.core.vectors import Flat
from quorate.data.resuming import enter_at, whereabouts
from quorate.membership.same_call import compare_with_those_joined
from quorate.wire.current import Place

if TYPE_CHECKING:
    from quorate.train.worker import OptimizerWorker


_GIVEN = ("same", "average")
"""The laws of a strategy's fields that one which joins gets as they are; of the others it has what `start` makes."""


def capture(worker: OptimizerWorker, model: Module, whole: Place | None) -> tuple[dict[str, Any], Sequence[Tensor]]:
    """Parameters and optimizer, as JSON and tensors of their own; of a `whole` place also the rest of the model, what
    the strategy and the script keep, and where its loaders are."""
    common = worker.strategy.consensus(worker)[0] if _has_common(worker) else None
    places = {} if common is None else dict(zip(map(id, worker.trained), common.segments(), strict=True))
    parameters = [places.get(id(p), p.detach()).clone() for p in worker.every]
    about, tensors = optimizer_to_plain(worker.optimizer)
    about |= {"parameters": len(parameters), "updates": worker.timer.rounds, "whole": None}
    more: list[Tensor] = []
    if whole is not None:
        others = [x.detach().clone() for x in beside(model, worker.every)]
        state, kept = _state_to_plain(worker, whole)
        about["whole"] = {
            "call": worker.call.told,
            "beside": len(others),
            "kept": len(kept),
            "state": state,
            "data": whereabouts(whole),
        }
        more = [*others, *kept]
    return about, [*more, *parameters, *(x.clone() for x in tensors)]


def _has_common(worker: OptimizerWorker) -> bool:
    """Whether what is equal on all workers after the same round is not the model, but what the strategy keeps."""
    return worker.has_rounds and worker.differs


def _state_to_plain(worker: OptimizerWorker, place: Place) -> tuple[str, list[Tensor]]:
    """What the strategy keeps that is equal on all workers, or near to it, and what the script keeps besides, as JSON
    and tensors."""
    fields = {name: getattr(worker.state, name) for name, law in laws_of(worker.state).items() if law in _GIVEN}
    extras = {name: thing.state_dict() for name, thing in trained(place).extras.items()}
    tensors: list[Tensor] = []

    def put(name: str, x: Tensor) -> str:
        tensors.append(x.clone())
        return str(len(tensors) - 1)

    all_of_it = {"fields": flats_as_parts(fields), "extras": extras, "step": worker.step}
    return json.dumps(encoded(all_of_it, "", put)), tensors


def adopt(
    worker: OptimizerWorker, model: Module, place: Place, about: dict[str, Any], tensors: Sequence[Tensor]
) -> None:
    """Become what was captured. Raises `ConfigurationError` where this worker has built another model."""
    whole = about["whole"]
    if whole is not None:
        tensors = _adopt_whole(worker, model, place, whole, tensors)
    count, worker.timer.rounds = about["parameters"], about["updates"]
    with torch.no_grad():
        for p, numbers in zip(worker.every, tensors[:count], strict=True):
            p.copy_(numbers)
    own = [_options(group) for group in worker.optimizer.param_groups]
    optimizer_from_plain(worker.optimizer, about, list(tensors[count:]))
    if whole is None:
        for group, options in zip(worker.optimizer.param_groups, own, strict=True):
            group.update(options)  # the learning rate and the rest are this worker's own scheduler's
    else:
        entered = trained(place).entered
        assert entered is not None
        entered.options = [_options(group) for group in worker.optimizer.param_groups]
    if _has_common(worker):
        given = dict(zip(map(id, worker.every), tensors, strict=False))
        theirs = Flat.zeros(worker.peers.layout)
        pack([given[id(p)] for p in worker.trained], theirs)
        worker.strategy.restored(worker, theirs)


def _adopt_whole(
    worker: OptimizerWorker, model: Module, place: Place, whole: dict[str, Any], tensors: Sequence[Tensor]
) -> Sequence[Tensor]:
    """What is there besides parameters and optimizer; returns the tensors of these."""
    compare_with_those_joined(worker.call, whole["call"])
    others, end = whole["beside"], whole["beside"] + whole["kept"]
    with torch.no_grad():
        for x, numbers in zip(beside(model, worker.every), tensors[:others], strict=True):
            write_back([x], numbers.reshape(-1))
    state = decoded(whole["state"], {str(number): x for number, x in enumerate(tensors[others:end])})
    for name, value in parts_as_flats(state["fields"], worker.peers.layout).items():
        object.__setattr__(worker.state, name, value)
    trained(place).entered = Entered(state["extras"], state["step"])
    enter_at(place, whole["data"])
    return tensors[end:]


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
