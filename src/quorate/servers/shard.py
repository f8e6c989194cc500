"""Copies of a part of a replica's parameters, and an optimizer of the user's class that steps on them."""

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

from quorate.core.device_copies import waiting_once
from quorate.core.vectors import Flat, Layout, mask_of
from quorate.means.table_changes import writes_rows_only
from quorate.replica import optimizer_state
from quorate.replica.options_in_force import OptionsInForce
from quorate.replica.plain_step import second_order, step_unseen
from quorate.replica.replica import Replica
from quorate.servers.served_tables import write_rows


@dataclass(frozen=True)
class Piece:
    """Elements `begin` to `end` of a part of vectors over a replica."""

    part: int
    begin: int
    end: int


@dataclass(frozen=True)
class Cut:
    """A shard of a layout, cut between parameters."""

    places: tuple[int, ...]
    """Places of its parameters among the layout's segments."""
    pieces: tuple[Piece, ...]
    layout: Layout
    """Layout of the tensors that `of` returns, as a vector of its own."""
    nbytes: int
    tables: tuple[int, ...] = ()
    """Places of its tables with sparse gradients among those of a replica."""

    @property
    def count(self) -> int:
        """Number of tensors in a message: one for each piece, and one for all tables."""
        return len(self.pieces) + bool(self.tables)

    def parameters_of(self, replica: Replica) -> list[Parameter]:
        """Return the parameters of a replica that belong to the cut, the tables last."""
        return [replica.trained[place] for place in self.places] + self.tables_of(replica)

    def tables_of(self, replica: Replica) -> list[Parameter]:
        """Return the tables of a replica that belong to the cut."""
        return [replica.sparse_tables[place] for place in self.tables]

    def of(self, x: Flat) -> list[Tensor]:
        """Return the elements of vector `x` that belong to the cut, one view per piece."""
        return [x.parts[piece.part][piece.begin : piece.end] for piece in self.pieces]

    def views(self, tensors: Sequence[Tensor], layout: Layout) -> list[Tensor]:
        """Return the numbers of each parameter, in its shape, of `tensors` that are laid out as by `of`.

        They are views; where numbers are pruned, copies with zeros in their places.
        """
        begins = {piece.part: (piece.begin, x) for piece, x in zip(self.pieces, tensors, strict=True)}
        views = []
        for place in self.places:
            segment = layout.segments[place]
            begin, x = begins[segment.part]
            numbers = x[segment.offset - begin : segment.offset - begin + segment.numel].view(segment.shape)
            views.append(numbers if (mask := mask_of(segment)) is None else mask.scatter(numbers))
        return views


def cuts_of(layout: Layout, count: int, tables: Sequence[Tensor] = ()) -> list[Cut]:
    """Return `count` cuts of about equal size in bytes, between parameters in their order; some may be empty.

    The `tables` that are trained beside the layout come last.
    """
    order = sorted(range(len(layout.segments)), key=lambda i: (layout.segments[i].part, layout.segments[i].offset))
    sizes = [layout.segments[i].numel * layout.segments[i].dtype.itemsize for i in order]
    sizes += [table.numel() * table.dtype.itemsize for table in tables]
    total, before = sum(sizes), 0
    chosen: list[list[int]] = [[] for _ in range(count)]
    for number, size in enumerate(sizes):
        middle = before + size / 2
        chosen[min(count - 1, int(count * middle / total)) if total else 0].append(number)
        before += size
    return [_cut(numbers, order, layout) for numbers in chosen]


def _cut(chosen: Sequence[int], order: Sequence[int], layout: Layout) -> Cut:
    places = [order[number] for number in chosen if number < len(order)]
    pieces = []
    for part in sorted({layout.segments[i].part for i in places}):
        inside = [layout.segments[i] for i in places if layout.segments[i].part == part]
        pieces.append(Piece(part, min(s.offset for s in inside), max(s.offset + s.numel for s in inside)))
    nbytes = sum((piece.end - piece.begin) * layout.parts[piece.part].dtype.itemsize for piece in pieces)
    numbers = {piece.part: (number, piece.begin) for number, piece in enumerate(pieces)}
    own = Layout(
        tuple(
            replace(s, part=numbers[s.part][0], offset=s.offset - numbers[s.part][1])
            for s in (layout.segments[place] for place in places)
        ),
        tuple(replace(layout.parts[piece.part], numel=piece.end - piece.begin) for piece in pieces),
        0,
    )
    tables = tuple(number - len(order) for number in chosen if number >= len(order))
    return Cut(tuple(places), tuple(pieces), own, nbytes, tables)


@dataclass(frozen=True)
class ReceivedShard:
    """The contents of a shard as a worker has sent them, to be used in place of those of the server's own replica."""

    numbers: Sequence[Tensor]
    """The parameters, laid out as by `Cut.of`; behind them the message of the tables, if there are any."""
    states: Sequence[Any]
    kept: Sequence[Tensor]
    """The optimizer state with `states`, in the form of `states_to_plain`."""
    beside: Mapping[str, Any]
    """The optimizer state outside parameters, in the form of `beside_parameters`."""


class Shard:
    """The part `cut` of `replica` as it is now, or of the contents `received`. The replica is read in `__init__` only.

    Cost: a copy of the parameters and of their optimizer state.
    """

    def __init__(self, replica: Replica, cut: Cut, received: ReceivedShard | None = None) -> None:
        self.cut, self._layout = cut, replica.layout
        originals = cut.parameters_of(replica)
        self._all = [Parameter(p.detach().clone()) for p in originals]
        self._parameters, self.tables = self._all[: len(cut.places)], self._all[len(cut.places) :]
        self.writes_rows_only = writes_rows_only(replica.plain)
        """Whether its steps are known to write only the rows of a sparse gradient."""
        self._optimizer = _like(replica, dict(zip(map(id, originals), self._all, strict=True)))
        self._options = OptionsInForce(self._optimizer)
        if received is None:
            states, tensors = optimizer_state.states_to_plain(replica.optimizer, originals)
        else:
            states, tensors = list(received.states), list(received.kept)
            optimizer_state.put_beside_parameters(self._optimizer, received.beside)
            with torch.no_grad():
                pieces = received.numbers[: len(cut.pieces)]
                for p, x in zip(self._parameters, cut.views(pieces, replica.layout), strict=True):
                    p.copy_(x)
            for message in received.numbers[len(pieces) :]:
                write_rows(message, self.tables)
        optimizer_state.states_from_plain(self._optimizer, self._all, states, [x.clone() for x in tensors])

    def copied(self, empty: Callable[[int, torch.dtype], Tensor] | None = None) -> list[Tensor]:
        """Return a copy of the parameters without the tables, laid out as by `Cut.of`; `empty(numel, dtype)` allocates
        CPU memory."""
        return [self.copied_piece(number, empty) for number in range(len(self.cut.pieces))]

    def copied_piece(self, number: int, empty: Callable[[int, torch.dtype], Tensor] | None = None) -> Tensor:
        """Return a copy of the parameters in the piece of the cut with this number."""
        piece = self.cut.pieces[number]
        part, count = self._layout.parts[piece.part], piece.end - piece.begin
        if empty is not None and part.device.type == "cpu":
            copy = empty(count, part.dtype)
        else:
            copy = torch.empty(count, dtype=part.dtype, device=part.device)
        with torch.no_grad():
            for place, p in zip(self.cut.places, self._parameters, strict=True):
                segment = self._layout.segments[place]
                if segment.part == piece.part:
                    begin = segment.offset - piece.begin
                    numbers = p if (mask := mask_of(segment)) is None else mask.gather(p)
                    copy[begin : begin + segment.numel].view(segment.shape).copy_(numbers)
        return copy

    def placed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors that are laid out as by `Cut.of`, moved to the devices of the parameters."""
        devices = [self._layout.parts[piece.part].device for piece in self.cut.pieces]
        with waiting_once() as move:
            return [move(x, device) for x, device in zip(tensors, devices, strict=True)]

    def write(self, edit: Sequence[Tensor]) -> None:
        """Set parameters to the values in `edit`, where they are not NaN."""
        with torch.no_grad():
            for p, x in zip(self._parameters, self.cut.views(edit, self._layout), strict=True):
                values = x.to(p.device)
                p.copy_(torch.where(values.isnan(), p, values))

    def step(
        self,
        gradient: Sequence[Tensor],
        options: Sequence[dict[str, Any]],
        rate: float,
        used: Sequence[bool],
        of_tables: Sequence[Tensor | None] = (),
    ) -> None:
        """Make one step of the optimizer, at `rate` times the learning rate of `options`, on a gradient in the layout
        of `Cut.of`.

        `used` says whether each parameter has a gradient; `of_tables` are the gradients of the tables.
        """
        for table, grad in zip(self.tables, of_tables, strict=True):
            table.grad = grad
        for p, grad, is_used in zip(self._parameters, self.cut.views(gradient, self._layout), used, strict=True):
            p.grad = grad.to(p.device, p.dtype) if is_used else None
        complete = self._options.complete(options)
        with self._options.in_force(complete, [{**group, "lr": group["lr"] * rate} for group in complete]):
            try:
                step_unseen(self._optimizer)
            except RuntimeError as error:
                clearer_error = second_order(error, type(self._optimizer))
                if clearer_error is None:
                    raise
                raise clearer_error from error
        for p in self._all:
            p.grad = None

    @property
    def own_options(self) -> list[dict[str, Any]]:
        """The options that steps have changed, by parameter group; empty for groups without parameters here."""
        groups = self._optimizer.param_groups
        return [left if group["params"] else {} for left, group in zip(self._options.left, groups, strict=True)]

    @property
    def beside(self) -> dict[str, Any]:
        """State of the optimizer outside parameters and options."""
        return optimizer_state.beside_parameters(self._optimizer)

    @property
    def states(self) -> tuple[list[Any], list[Tensor]]:
        """Copies of the optimizer state, in the order of `Cut.parameters_of` and in the form of `states_to_plain`."""
        states, tensors = optimizer_state.states_to_plain(self._optimizer, self._all)
        return states, [x.clone() for x in tensors]


def _like(replica: Replica, copies: dict[int, Parameter]) -> Optimizer:
    """Return an optimizer of the user's class for the `copies` of parameters, by the ids of the originals."""
    own = replica.optimizer
    kept = {name: x for name, x in own.__dict__.items() if not name.startswith("_") and name not in _OF_TORCH}
    again = replica.plain.__new__(replica.plain)
    again.__dict__.update(copy.copy(kept))
    groups = []
    for group in own.param_groups:
        options = {name: copy.deepcopy(x) for name, x in group.items() if name != "params"}
        groups.append({**options, "params": [copies[id(p)] for p in group["params"] if id(p) in copies]})
    names: Any = own.state
    state: Any = defaultdict(dict, {key: copy.deepcopy(x) for key, x in names.items() if isinstance(key, str)})
    again.__setstate__({"defaults": copy.deepcopy(own.defaults), "state": state, "param_groups": groups})
    optimizer_state.note_attributes(again)
    return again


_OF_TORCH = ("defaults", "state", "param_groups", "step", "grad_scale", "found_inf")


class Centre:
    """The part `cut` of a centre. It starts at a copy of `numbers`, which are laid out as `Cut.of` returns them."""

    def __init__(self, numbers: Sequence[Tensor], cut: Cut) -> None:
        self.cut, self._numbers = cut, [x.clone() for x in numbers]

    def copied(self, empty: Callable[[int, torch.dtype], Tensor]) -> list[Tensor]:
        """Return a copy of its numbers, laid out as by `Cut.of`; `empty(numel, dtype)` allocates memory on the CPU."""
        return [empty(x.numel(), x.dtype).copy_(x) if x.device.type == "cpu" else x.clone() for x in self._numbers]

    def draw(self, x: Sequence[Tensor], alpha: float) -> None:
        """c <- c + alpha (x - c), for parameters x that are laid out as by `Cut.of`. Cost: two passes."""
        for c, parameter in zip(self._numbers, x, strict=True):
            c.add_(parameter.to(c.device) - c, alpha=alpha)
