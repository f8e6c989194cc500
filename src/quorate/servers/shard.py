"""A part of a replica's parameters with numbers of its own, and an optimizer of the user's class that steps on them."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from quorate.core.vectors import Flat, Layout
from quorate.replica.optimizer_state import (
    beside_parameters,
    note_attributes,
    put_beside_parameters,
    states_from_plain,
    states_to_plain,
)
from quorate.replica.options_in_force import OptionsInForce
from quorate.replica.plain_step import second_order, step_unseen
from quorate.replica.replica import Replica


@dataclass(frozen=True)
class Piece:
    """Elements `begin` to `end` of a part of vectors over a replica."""

    part: int
    begin: int
    end: int


@dataclass(frozen=True)
class Cut:
    """One of the shards of a layout: whole parameters."""

    places: tuple[int, ...]
    """Of its parameters, among the layout's segments."""
    pieces: tuple[Piece, ...]
    """What it is of vectors."""
    layout: Layout
    """Of what `of` gives, as a vector of its own."""
    nbytes: int

    def of(self, x: Flat) -> list[Tensor]:
        """What it is of this vector (views)."""
        return [x.parts[piece.part][piece.begin : piece.end] for piece in self.pieces]

    def views(self, tensors: Sequence[Tensor], layout: Layout) -> list[Tensor]:
        """Its parameters in what `of` gives, in their shapes."""
        there = {piece.part: (piece.begin, x) for piece, x in zip(self.pieces, tensors, strict=True)}
        found = []
        for place in self.places:
            segment = layout.segments[place]
            begin, x = there[segment.part]
            found.append(x[segment.offset - begin : segment.offset - begin + segment.numel].view(segment.shape))
        return found


def cuts_of(layout: Layout, count: int) -> list[Cut]:
    """`count` shards of about as many bytes each, cut between parameters in the order of their places; some may have
    none."""
    order = sorted(range(len(layout.segments)), key=lambda i: (layout.segments[i].part, layout.segments[i].offset))
    sizes = [layout.segments[i].numel * layout.segments[i].dtype.itemsize for i in order]
    total, before = sum(sizes), 0
    chosen: list[list[int]] = [[] for _ in range(count)]
    for place, size in zip(order, sizes, strict=True):
        middle = before + size / 2
        chosen[min(count - 1, int(count * middle / total)) if total else 0].append(place)
        before += size
    return [_cut(places, layout) for places in chosen]


def _cut(places: Sequence[int], layout: Layout) -> Cut:
    pieces = []
    for part in sorted({layout.segments[i].part for i in places}):
        inside = [layout.segments[i] for i in places if layout.segments[i].part == part]
        pieces.append(Piece(part, min(s.offset for s in inside), max(s.offset + s.numel for s in inside)))
    nbytes = sum((one.end - one.begin) * layout.parts[one.part].dtype.itemsize for one in pieces)
    numbers = {one.part: (number, one.begin) for number, one in enumerate(pieces)}
    own = Layout(
        tuple(
            replace(s, part=numbers[s.part][0], offset=s.offset - numbers[s.part][1])
            for s in (layout.segments[place] for place in places)
        ),
        tuple(replace(layout.parts[one.part], numel=one.end - one.begin) for one in pieces),
        0,
    )
    return Cut(tuple(places), tuple(pieces), own, nbytes)


@dataclass(frozen=True)
class Given:
    """What a shard has in place of a replica's: parameters as `Cut.of` gives them, and what the optimizer keeps of
    them, as `states_to_plain` gives it."""

    numbers: Sequence[Tensor]
    states: Sequence[Any]
    kept: Sequence[Tensor]
    beside: Mapping[str, Any]
    """What it keeps beside parameters, as `beside_parameters` gives it."""


class Shard:
    """The part `cut` of `replica`, as it is now, or with what is `given`; the replica is read here only.

    Cost: a copy of the parameters, and of what the optimizer keeps of them.
    """

    def __init__(self, replica: Replica, cut: Cut, given: Given | None = None) -> None:
        self.cut, self._layout = cut, replica.layout
        mine = [replica.trained[place] for place in cut.places]
        self._parameters = [Parameter(p.detach().clone()) for p in mine]
        self._optimizer = _like(replica, dict(zip(map(id, mine), self._parameters, strict=True)))
        self._options = OptionsInForce(self._optimizer)
        if given is None:
            states, tensors = states_to_plain(replica.optimizer, mine)
        else:
            states, tensors = list(given.states), list(given.kept)
            put_beside_parameters(self._optimizer, given.beside)
            with torch.no_grad():
                for p, x in zip(self._parameters, cut.views(given.numbers, replica.layout), strict=True):
                    p.copy_(x)
        states_from_plain(self._optimizer, self._parameters, states, [x.clone() for x in tensors])

    def copied(self, empty: Callable[[int, torch.dtype], Tensor] | None = None) -> list[Tensor]:
        """The parameters, as `Cut.of` gives them; `empty(numel, dtype)` makes memory on the CPU."""
        found = []
        for piece in self.cut.pieces:
            part, count = self._layout.parts[piece.part], piece.end - piece.begin
            if empty is not None and part.device.type == "cpu":
                found.append(empty(count, part.dtype))
            else:
                found.append(torch.empty(count, dtype=part.dtype, device=part.device))
        with torch.no_grad():
            for p, there in zip(self._parameters, self.cut.views(found, self._layout), strict=True):
                there.copy_(p)
        return found

    def placed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The same, laid out as `Cut.of` gives it, on the devices of the parameters."""
        devices = [self._layout.parts[piece.part].device for piece in self.cut.pieces]
        return [x.to(device) for x, device in zip(tensors, devices, strict=True)]

    def write(self, edit: Sequence[Tensor]) -> None:
        """Let parameters be what was written into them elsewhere; NaN where nothing was."""
        with torch.no_grad():
            for p, x in zip(self._parameters, self.cut.views(edit, self._layout), strict=True):
                there = x.to(p.device)
                p.copy_(torch.where(there.isnan(), p, there))

    def step(
        self, gradient: Sequence[Tensor], options: Sequence[dict[str, Any]], rate: float, used: Sequence[bool]
    ) -> None:
        """One step of the optimizer, with these options but `rate` times the learning rate, on a gradient that is laid
        out as `Cut.of` gives it, of the parameters that are `used`."""
        for p, grad, is_used in zip(self._parameters, self.cut.views(gradient, self._layout), used, strict=True):
            p.grad = grad.to(p.device, p.dtype) if is_used else None
        complete = self._options.complete(options)
        with self._options.in_force(complete, [{**group, "lr": group["lr"] * rate} for group in complete]):
            try:
                step_unseen(self._optimizer)
            except RuntimeError as error:
                told = second_order(error, type(self._optimizer))
                if told is None:
                    raise
                raise told from error
        for p in self._parameters:
            p.grad = None

    @property
    def own_options(self) -> list[dict[str, Any]]:
        """What steps have left of the optimizer's own options, by group; nothing of groups that lie elsewhere."""
        groups = self._optimizer.param_groups
        return [left if group["params"] else {} for left, group in zip(self._options.left, groups, strict=True)]

    @property
    def beside(self) -> dict[str, Any]:
        """What the optimizer keeps beside parameters and options."""
        return beside_parameters(self._optimizer)

    @property
    def states(self) -> tuple[list[Any], list[Tensor]]:
        """What the optimizer keeps, in the order of the cut's places, as `states_to_plain` gives it: copies."""
        states, tensors = states_to_plain(self._optimizer, self._parameters)
        return states, [x.clone() for x in tensors]


def _like(replica: Replica, there: dict[int, Parameter]) -> Optimizer:
    """An optimizer of the user's class that has these parameters in the place of the user's, and none of the others."""
    own = replica.optimizer
    kept = {name: x for name, x in own.__dict__.items() if not name.startswith("_") and name not in _OF_TORCH}
    again = replica.plain.__new__(replica.plain)
    again.__dict__.update(copy.copy(kept))
    groups = []
    for group in own.param_groups:
        options = {name: copy.deepcopy(x) for name, x in group.items() if name != "params"}
        groups.append({**options, "params": [there[id(p)] for p in group["params"] if id(p) in there]})
    names: Any = own.state
    state: Any = defaultdict(dict, {key: copy.deepcopy(x) for key, x in names.items() if isinstance(key, str)})
    again.__setstate__({"defaults": copy.deepcopy(own.defaults), "state": state, "param_groups": groups})
    note_attributes(again)
    return again


_OF_TORCH = ("defaults", "state", "param_groups", "step", "grad_scale", "found_inf")
