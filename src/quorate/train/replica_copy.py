"""Copies of one worker's replica for a worker that misses rounds, or for a newcomer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quorate.checkpoint.encoding import decoded, encoded, flats_as_parts, parts_as_flats
from quorate.checkpoint.participants import Entered, Participant, Trained
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.core.resize import laws_of
from quorate.core.vectors import Flat, full_segments, pack
from quorate.data.context import DataContext
from quorate.data.loader import Loaders
from quorate.replica.masks import masks_of
from quorate.replica.optimizer_state import (
    beside,
    caches_in,
    optimizer_from_other,
    optimizer_from_plain,
    optimizer_to_plain,
    options_of,
    write_back,
)
from quorate.replica.options_in_force import own_options_in
from quorate.train.same_call import Call, compare_with_those_joined
from quorate.wire.current import Place

_SENT = ("same", "average")
"""The laws of strategy fields that a newcomer copies; other fields are as `start` makes them."""


class TooFewOptimizers(ConfigurationError):
    """A newcomer has not distributed all optimizers of the others yet; `missing` are the names."""

    def __init__(self, missing: Sequence[str]) -> None:
        self.missing = tuple(missing)
        super().__init__(f"the workers that this one joins have further optimizers: {', '.join(self.missing)}")


@dataclass
class _Copies:
    all: list[ReplicaCopy] = field(default_factory=list)


class ReplicaCopy:
    """Copies of the replica of one optimizer's worker, whose call of `distribute` was `call`.

    With several distributed optimizers, a copy for a newcomer has the calls of all of them. It has the parameters of
    its own optimizer, and the tensors of the model that belong to no optimizer.
    """

    def __init__(self, worker: Participant, call: Call, place: Place) -> None:
        self._worker, self.call, self._place = worker, call, place
        self.is_first = True
        """Whether a newcomer takes its place in script and data from this copy, out of all its optimizers'."""
        self._every = place.context(_Copies)
        self._every.all.append(self)

    def capture(self, *, is_whole: bool) -> tuple[dict[str, Any], Sequence[Tensor]]:
        """Return parameters, optimizer and the strategy's state that is equal on all, as JSON and tensors of their own.

        With `is_whole` also the rest of the model, the state of strategy and script, and the places of loaders. Where
        replicas differ, without it, the optimizer state is not copied.
        """
        worker, replica = self._worker, self._worker.replica
        common = worker.strategy.consensus(worker)[0] if self._has_common else None
        places = {} if common is None else dict(zip(map(id, replica.trained), full_segments(common), strict=True))
        parameters = [places.get(id(p), local(p).detach()).clone() for p in replica.every]
        header, tensors = ({}, []) if common is not None and not is_whole else optimizer_to_plain(replica.optimizer)
        header |= {"parameters": len(parameters), "updates": worker.updates, "whole": None, "equal": None}
        header["own options"] = replica.options.kept()
        masks = masks_of(replica.optimizer).kept()
        header |= {"masks": sorted(masks), "pruned at": masks_of(replica.optimizer).pruned_at}
        more: list[Tensor] = []
        if common is not None and not is_whole:
            fields = {name: x for name, x in self._fields(("same",)).items() if x is not common}
            header["equal"] = _put(flats_as_parts(fields), more), len(more)
        if is_whole:
            others = [x.detach().clone() for x in self._beside()]
            state, kept = self._state_to_plain()
            header["whole"] = {
                "call": self.call.summary,
                "calls": {copy._worker.name: copy.call.summary for copy in self._every.all},
                "beside": len(others),
                "kept": len(kept),
                "state": state,
                "data": self._place.context(Loaders).whereabouts(self._place.context(DataContext)),
            }
            more = [*others, *kept]
        return header, [*(masks[number] for number in sorted(masks)), *more, *parameters, *(x.clone() for x in tensors)]

    @property
    def _has_common(self) -> bool:
        """Whether the state that is equal on all workers after a round is the strategy's, and not the model."""
        return self._worker.has_rounds and self._worker.differs

    def _beside(self) -> list[Tensor]:
        """Return the tensors of the model that belong to no optimizer."""
        return beside(self._worker.replica.model, [p for copy in self._every.all for p in copy._worker.replica.every])

    def _state_to_plain(self) -> tuple[str, list[Tensor]]:
        """Return the state of strategy and script that is equal on all workers, or nearly, as JSON and tensors."""
        extras = {name: thing.state_dict() for name, thing in self._place.context(Trained).extras.items()}
        tensors: list[Tensor] = []
        fields = flats_as_parts(self._fields(_SENT))
        reducer = flats_as_parts(_fields_of(self._worker.reducer_state, ("same",)))
        state = {"fields": fields, "reducer": reducer, "extras": extras, "step": self._worker.step}
        return _put(state, tensors), tensors

    def _fields(self, laws: Sequence[str]) -> dict[str, Any]:
        return _fields_of(self._worker.state, laws)

    def adopt(self, header: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        """Restore a captured replica. Raises `ConfigurationError` if this worker has built another model."""
        worker, replica, whole = self._worker, self._worker.replica, header["whole"]
        if whole is not None:
            self._compare(whole)
        masks_of(replica.optimizer).pruned_at = header["pruned at"]
        tensors = self._adopt_masks(header["masks"], tensors)
        if whole is not None:
            tensors = self._adopt_whole(whole, tensors)
        elif header["equal"] is not None:
            state, kept = header["equal"]
            self._adopt_fields(_got(state, tensors[:kept]))
            tensors = tensors[kept:]
        count, worker.updates = header["parameters"], header["updates"]
        with torch.no_grad():
            for p, numbers in zip(replica.every, tensors[:count], strict=True):
                local(p).copy_(numbers)
        if whole is None and header["equal"] is None:
            written = own_options_in(header["own options"])
            optimizer_from_other(replica.optimizer, header, tensors[count:], written)
        elif whole is not None:
            optimizer_from_plain(replica.optimizer, header, tensors[count:])
            entered = self._place.context(Trained).entered
            assert entered is not None
            entered.options[worker.name] = [options_of(group) for group in replica.optimizer.param_groups]
        replica.options.go_on(header["own options"])
        if self._has_common:
            numbers_of = dict(zip(map(id, replica.every), tensors, strict=False))
            theirs = Flat.zeros(replica.layout)
            pack([numbers_of[id(p)] for p in replica.trained], theirs)
            worker.strategy.restored(worker, theirs)

    def _adopt_masks(self, numbers: Sequence[int], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Take over the masks of the parameters with these numbers; return the tensors behind those of the masks."""
        masks = masks_of(self._worker.replica.optimizer)
        kept = dict(zip(numbers, tensors, strict=False))
        now = masks.kept()
        if now.keys() != kept.keys() or any(not torch.equal(kept[number], x.cpu()) for number, x in now.items()):
            masks.restore(kept)
            self._worker.masked()
        return tensors[len(kept) :]

    def _adopt_whole(self, whole: dict[str, Any], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Restore everything but parameters and optimizer; return the tensors of these."""
        replica = self._worker.replica
        others, end = whole["beside"], whole["beside"] + whole["kept"]
        named, caches = dict(replica.model.named_buffers()), caches_in(replica.model)
        ids = {id(named[name]) for name in caches & named.keys()}
        with torch.no_grad():
            for x, numbers in zip(self._beside(), tensors[:others], strict=True):
                if id(x) not in ids or x.numel() == numbers.numel():
                    write_back([x], numbers.reshape(-1))
        state = _got(whole["state"], tensors[others:end])
        self._adopt_fields(state["fields"])
        for name, value in parts_as_flats(state["reducer"], replica.layout).items():
            setattr(self._worker.reducer_state, name, value)
        if self.is_first:
            self._place.context(Trained).entered = Entered(state["extras"], state["step"])
            self._place.context(Loaders).enter_at(whole["data"], self._place.context(DataContext))
        return tensors[end:]

    def _compare(self, whole: dict[str, Any]) -> None:
        """Raise `ConfigurationError` if this worker's calls of `distribute` differ, or `TooFewOptimizers`."""
        compare_with_those_joined(self.call, whole["call"])
        theirs = whole["calls"]
        own = {copy._worker.name: copy.call for copy in self._every.all}
        if not theirs.keys() >= own.keys():
            raise ConfigurationError(
                f"this worker distributes the optimizers {', '.join(own)}, and the workers that it joins "
                f"{', '.join(theirs)}; run the same script"
            )
        if missing := [name for name in theirs if name not in own]:
            raise TooFewOptimizers(missing)
        for name, call in own.items():
            compare_with_those_joined(call, theirs[name])

    def _adopt_fields(self, fields: dict[str, Any]) -> None:
        for name, value in parts_as_flats(fields, self._worker.replica.layout).items():
            object.__setattr__(self._worker.state, name, value)


def _fields_of(state: Any, laws: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(state, name) for name, law in laws_of(state).items() if law in laws}


def _put(state: Any, tensors: list[Tensor]) -> str:
    """Return `state` as JSON, with copies of its tensors appended to `tensors`."""

    def put(name: str, x: Tensor) -> str:
        tensors.append(x.clone())
        return str(len(tensors) - 1)

    return json.dumps(encoded(state, "", put))


def _got(text: str, tensors: Sequence[Tensor]) -> Any:
    return decoded(text, {str(number): x for number, x in enumerate(tensors)})
