"""One micro-batch on its way forward through one stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from quorate.core.errors import ConfigurationError, Mismatch
from quorate.sharding.stages.between import Between
from quorate.sharding.stages.run import Kept, Run
from quorate.sharding.stages.units import Unit


class Left(BaseException):
    """The stage has sent all that it makes; what the model does behind that is another worker's affair."""


class Passing:
    """One micro-batch on its way forward through one stage."""

    def __init__(self, units: Sequence[Unit], between: Between, run: Run, stage: int, number: int, last: int) -> None:
        self._units, self._between, self._run, self._stage, self._number = units, between, run, stage, number
        self._is_last, self._kept = stage == last, Kept()
        if run.learns:
            run.kept[stage, number] = self._kept
        self._route = run.routes[number]
        self._calls = iter(self._route.calls)
        self._sends = set(self._route.sent_by(stage))
        self._came: dict[int, Tensor] = {}
        self.has_ended = False
        """Whether a call is no part of the forward pass any more."""

    def called(self, unit: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the unit gives: calculated, where it is of this stage."""
        if self.has_ended:
            return self._recomputed(unit, args, kwargs)
        call = next(self._calls, None)
        if call is None or call.unit != unit:
            raise Mismatch(
                f"the model has called {self._units[unit].name}, and with inputs of the same shape it did not "
                "before; a model in stages calls its modules in the same order each time"
            )
        if call.stage == self._stage:
            if call.takes:
                args, kwargs = self._with_numbers(call.takes, args, kwargs)
            return self._units[unit].module(*args, **kwargs)
        if call.stage > self._stage:
            if call.takes and self._sends:
                self._send(call.takes, pytree.tree_leaves((args, kwargs)))
            if not self._sends and not self._is_last:
                raise Left
        return pytree.tree_unflatten(list(call.leaves), call.spec)

    def _recomputed(self, unit: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same in a backward pass, for `torch.utils.checkpoint`, which calls with what it was called with."""
        own = [call for call in self._route.calls if call.unit == unit and call.stage == self._stage]
        if len(own) != 1:
            raise ConfigurationError(
                f"{self._units[unit].name} is called {len(own)} times in a stage, and its activations are to be "
                "recomputed; let the module itself call torch.utils.checkpoint"
            )
        args, kwargs = self._with_numbers(own[0].takes, args, kwargs)
        return self._units[unit].module(*args, **kwargs)

    def _send(self, takes: Sequence[tuple[int, int]], leaves: Sequence[Any]) -> None:
        for place, transfer in takes:
            if transfer in self._sends:
                self._sends.discard(transfer)
                x, target = leaves[place], self._route.transfers[transfer].target
                if self._run.learns:
                    self._kept.sent[transfer] = x
                self._between.give(self._run, "f", transfer, self._number, target, x)

    def _with_numbers(self, takes: Sequence[tuple[int, int]], args: Any, kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        for place, transfer in takes:
            if transfer not in self._came:
                source = self._route.transfers[transfer].source
                x = self._between.take(self._run, "f", transfer, self._number, source)
                assert x is not None
                device = leaves[place].device
                if x.device != device:
                    x = x.detach().to(device).requires_grad_(x.requires_grad)
                self._came[transfer] = self._kept.inputs[transfer] = x
            leaves[place] = self._came[transfer]
        return pytree.tree_unflatten(leaves, spec)
