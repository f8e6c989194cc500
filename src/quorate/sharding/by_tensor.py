"""Layers of a model that several workers compute together. Importing this module imports torch."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.nn import Module

from quorate.core.errors import ConfigurationError, Mismatch
from quorate.data.common_draws import CommonDraws
from quorate.sharding.bits import digest_of_inputs
from quorate.sharding.mesh import Seat
from quorate.sharding.sequence import InPieces
from quorate.sharding.tensor.activations import Together
from quorate.sharding.tensor.branches import branches_in
from quorate.sharding.tensor.dealt import attach, deal_out
from quorate.sharding.tensor.finding import tensor_plan
from quorate.sharding.tensor.heads import repeated_head
from quorate.sharding.tensor.layers import Statistics, cut_parameters, hook_layers
from quorate.sharding.tensor.plan import Plan, check_plan, sequence_plan
from quorate.wire import current
from quorate.wire.metered import Metered


def plan_for(model: Module, tensor: object, workers: int) -> Plan:
    """Return the checked plan of the script. Raises `ConfigurationError`."""
    if tensor == "auto" or tensor is None:
        plan = tensor_plan(model, workers)
    elif tensor == "sequence":
        plan = sequence_plan(model, workers)
    elif isinstance(tensor, Mapping):
        why = tensor.why if isinstance(tensor, Plan) else {}
        plan = Plan(model, workers, tensor, why)
    else:
        raise ConfigurationError(
            f'tensor={tensor!r} is not a plan; it must be "auto", "sequence", what quorate.tensor_plan returns, or '
            "names of modules and their styles"
        )
    check_plan(plan, model, workers)
    for name, style in plan.items():
        if style == "repeated":
            repeated_head(plan, model, name, workers)
    if all(style == "whole" for style in plan.values()) and not branches_in(model):
        raise ConfigurationError(
            "the tensor plan cuts no layer of the model, so all workers would compute the same; name layers in "
            "tensor={...}, or use shards"
        )
    return plan


def by_tensor(model: Module, plan: Plan, seat: Seat, apart: Collection[Module] = ()) -> None:
    """Cut `model` in place; its workers draw the same random numbers from now on. Modules in `apart` do not register
    calls: their caller replaces their parameters by plain tensors."""
    assert seat.parts is not None
    together = Together(Metered(seat.together.channel("tensor"), seat.traffic.meter), seat.traffic, seat.parts)
    vectors = [(layer, deal_out(layer, name, model, together)) for name, layer in branches_in(model).items()]
    cut_parameters(model, plan, seat.parts)
    for module, vector in vectors:
        attach(module, vector, together)
    statistics = hook_layers(model, plan, together, apart)
    in_pieces = None
    if plan.is_of_pieces:
        in_pieces = current.here().context(InPieces)
        in_pieces.together = together
    calls = _Calls(together, statistics, in_pieces)
    model.register_forward_pre_hook(calls.before, with_kwargs=True)
    model.register_forward_hook(calls.behind, always_call=True)
    seat.traffic.meet_also(together.meet)
    _draw_alike(together)


def _draw_alike(together: Together) -> None:
    """Give the generators of torch, numpy and Python the state that they have on the first of the workers."""
    draws = current.here().context(CommonDraws)
    seeds = torch.tensor([int(torch.empty((), dtype=torch.int64).random_()), draws.own])
    together.wire.broadcast(seeds, 0).wait()
    draws.join(*map(int, seeds))


class _Calls:
    """Watches the calls of one model: its workers must be given the same inputs, or pieces of the same."""

    def __init__(self, together: Together, statistics: Statistics, in_pieces: InPieces | None) -> None:
        self._together, self._statistics, self._in_pieces, self._calls = together, statistics, in_pieces, 0

    def before(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compare inputs in calls 1, 2, 4, 8 and so on. Raises `Mismatch`."""
        self._calls += 1
        self._statistics.is_in_call = True
        self._together.begin()
        if not self._calls & (self._calls - 1):
            self._compare(() if self._in_pieces is not None else (*args, *kwargs.values()))
        if self._in_pieces is not None:
            self._in_pieces.has_attended = False
            self._together.draw_apart()

    def _compare(self, values: tuple[Any, ...]) -> None:
        together = self._together
        local_digests = torch.tensor([digest_of_inputs(values), zlib.crc32(torch.get_rng_state().numpy().tobytes())])
        digests = together.traffic.wait(together.wire.all_gather(local_digests), together.wire.clock)
        for kind, at in (("batches", 0), ("random numbers", 1)):
            if any(int(other[at]) != int(digests[0][at]) for other in digests):
                raise Mismatch(
                    f"workers that compute a model together were given different {kind} (call {self._calls} of the "
                    "model); load data with quorate.shard, and draw the same random numbers on all workers "
                    "of the tensor axis"
                )

    def behind(self, module: Module, args: tuple[Any, ...], output: Any) -> None:
        """Let all workers draw the same random numbers again, even after an error."""
        self._together.draw_alike()
        self._statistics.is_in_call = False
        if output is not None:
            self._statistics.join()
        if self._in_pieces is not None and output is not None and not self._in_pieces.has_attended:
            raise ConfigurationError(
                'the model has pieces of the sequence (tensor="sequence"), and has not called '
                "quorate.sequence_attention, without which positions on different workers are independent"
            )
