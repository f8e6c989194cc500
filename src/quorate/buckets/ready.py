"""Gradients as they become ready during backward: hooks note them, and complete parts are packed and sent.

Hooks only pack (copies, never views of `.grad`) and send; no hook waits. Parts are sent in order. The last part stays
until the backward pass has ended, because it carries the header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, takewhile
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from quorate.core import vectors
from quorate.core.local_tensor import as_piece_of, local


class ReadyGradients:
    """The gradients of `parameters`, packed into `flat` part by part.

    `on_part(index, tensor)` is called to send each part once it is complete (None: parts are only packed, by
    `complete`). A part holds `scale` times the gradient, in the dtype of summation. `touched` holds, per parameter,
    whether its gradient has changed since the last call of `complete`, `began_without` whether it had none when the
    pass began. While it is `paused`, or `is_alone`, no part is sent; with `holds_parts` `complete` sends all parts.
    Gradients of `tables` are in no part; `touched_tables` is their `touched`.
    Code that passes on views of `flat` sets `is_lent`; while such a view is held, the next pass packs into new memory,
    which `blank` makes.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        flat: vectors.Flat,
        on_part: Callable[[int, Tensor], None] | None,
        blank: Callable[[vectors.Layout], vectors.Flat] = vectors.empty_vector,
        *,
        is_unwritten: bool = False,
        tables: Sequence[Parameter] = (),
    ) -> None:
        self._parameters, self.flat, self._on_part = tuple(parameters), flat, on_part
        self._blank, self._layout = blank, flat.layout
        self._is_unwritten = is_unwritten
        """Whether `flat` is a placeholder, in whose place a vector is made before anything is packed."""
        self.scale = 1.0
        self.paused = 0
        """How many contexts are open in which no part is sent."""
        self.is_alone = self.holds_parts = False
        self.touched, self.touched_tables = [False] * len(self._parameters), [False] * len(tables)
        self.fired = self.is_lent = self.has_graph = False
        self._is_outgrown = False
        """Whether vectors have another header since `flat` was made."""
        flat.segments()
        self._own = vectors.count_holders(flat)
        self.began_without = [False] * len(self._parameters)
        self._parts, self._part_of = (
            vectors.segments_by_part(flat.layout),
            [segment.part for segment in flat.layout.segments],
        )
        self._others: dict[str, tuple[vectors.Flat, int, bool]] = {}
        """Vectors of other layouts, which are used again."""
        self._reset()
        hooks: dict[int, RemovableHandle] = {
            index: p.register_post_accumulate_grad_hook(self._hook(index))
            for index, p in enumerate(self._parameters)
            if p.requires_grad
        }
        self._ids = {index: hook.id for index, hook in hooks.items()}
        self._hooks = list(hooks.values())
        self._hooks += [p.register_post_accumulate_grad_hook(self._hook_of_table(i)) for i, p in enumerate(tables)]

    @property
    def hands_on(self) -> bool:
        """Whether parts are sent as they are complete; otherwise they stay until all are."""
        return self._on_part is not None

    @property
    def is_under_way(self) -> bool:
        """Whether parts of this pass have been sent, but not the last one."""
        return self._handed_on > 0

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Inside, no part is sent. Several may end in any order."""
        self.paused += 1
        try:
            yield
        finally:
            self.paused -= 1

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Inside, backward passes add to `.grad`, and cause no exchange, then or later."""
        fired = self.fired
        with self.pausing():
            yield
        self.fired = fired

    def begin(self) -> None:
        """Begin a backward pass: note the gradients before it, and take memory for parts that no other code reads.

        Parts that a pass has sent which then raised an error are not sent again; they count as changed.
        """
        self.began_without = [p.grad is None for p in self._parameters]
        if True in self.touched:  # by passes that only added to `.grad`; the script may have cleared it since
            touched = zip(self.touched, self.began_without, strict=True)
            self.touched = [was_touched and not is_cleared for was_touched, is_cleared in touched]
        if self._is_outgrown or (self.is_lent and vectors.count_holders(self.flat) > self._own):
            self.flat = self._blank(self._layout)
            self.flat.segments()
        self.is_lent = self._is_outgrown = False
        if self.is_under_way:
            sent = self.interrupt()
            self._handed_on, self._dirty = len(sent), sent

    def interrupt(self) -> set[int]:
        """Forget a backward pass that has raised an error; return the parts that it has sent."""
        sent = set(range(self._handed_on))
        self._reset()
        return sent

    def lay_out(self, layout: vectors.Layout) -> None:
        """Pack into a vector of `layout` from the next backward pass on; only its header may be another."""
        self._layout, self._is_outgrown = layout, True

    def arrange(self, layout: vectors.Layout, *, keeps: bool) -> None:
        """Pack into a vector of another `layout` from the next backward pass on.

        It is called before that pass begins. With `keeps` the present vector stays, for when its layout comes again.
        """
        if keeps:
            self._others[vectors.digest_of(self.flat.layout)] = self.flat, self._own, self.is_lent
        else:
            self._others.clear()
        self._layout = layout
        kept = self._others.pop(vectors.digest_of(layout)) if vectors.digest_of(layout) in self._others else None
        self.flat, self._own, self.is_lent = (self._blank(layout), 0, False) if kept is None else kept
        self.flat.segments()
        self._own = self._own or vectors.count_holders(self.flat)
        self._is_outgrown = False
        self._parts, self._part_of = vectors.segments_by_part(layout), [segment.part for segment in layout.segments]
        self._reset()

    def _reset(self) -> None:
        self._missing = [len(indices) for indices in self._parts]
        self._seen = [False] * len(self._parameters)
        self._handed_on = 0
        self._dirty = set[int]()

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def note(parameter: Tensor) -> None:
            self.fired = True
            self.touched[index] = True
            if self.paused or self.is_alone or self.holds_parts or self._on_part is None:
                return
            part = self._part_of[index]
            if self._seen[index]:  # a second nested backward added to it (re-entrant checkpointing of tied weights)
                if part < self._handed_on:
                    self._dirty.add(part)
                return
            self._seen[index] = True
            self._missing[part] -= 1
            if not self._missing[part] and _is_final(parameter, self._ids[index]):
                self._hand_on()

        return note

    def _hook_of_table(self, index: int) -> Callable[[Tensor], None]:
        def note(table: Tensor) -> None:
            self.fired = self.touched_tables[index] = True

        return note

    def _hand_on(self) -> None:
        while self._handed_on < len(self._parts) - 1 and not self._missing[self._handed_on]:
            self._pack_and_hand_on(self._handed_on)

    def _pack_and_hand_on(self, part: int) -> None:
        self.pack(part)
        self._handed_on = part + 1
        if self._on_part is not None:
            self._on_part(part, self.flat.parts[part])

    def pack(self, part: int) -> None:
        """Copy the present gradients of `part`; a missing one is zeros."""
        if self._is_unwritten:
            self._is_unwritten, self.flat = False, self._blank(self._layout)
            self.flat.segments()
            self._own = vectors.count_holders(self.flat)
        grads: list[Tensor | None] = [None] * len(self._parameters)
        for index in self._parts[part]:
            grads[index] = self._parameters[index].grad
        vectors.pack(grads, self.flat, part=part, scale=self.scale)

    def complete(self, write_header: Callable[[Tensor, Sequence[bool], set[int]], None]) -> None:
        """End a backward pass: send the remaining parts.

        `write_header(header, touched, dirty)` fills the header; `dirty` parts changed after they were sent.
        """
        for part in range(self._handed_on, len(self._parts)):
            if part == len(self._parts) - 1:
                self.pack(part)
                write_header(vectors.header_in(self.flat), self.touched, self._dirty)
                self._handed_on = part + 1
                if self._on_part is not None:
                    self._on_part(part, self.flat.parts[part])
            else:
                self._pack_and_hand_on(part)
        self.pass_over()

    def forget_touched(self) -> None:
        """Note that the script has cleared gradients, or that a step has used them as they lie in `.grad`."""
        self.touched = [False] * len(self.touched)

    def put_off(self) -> None:
        """End a backward pass whose gradients a later `complete` sends."""
        self.fired = False
        self._reset()

    def pass_over(self) -> list[bool]:
        """End a backward pass without sending its gradients; return which were touched."""
        touched, self.touched = self.touched, [False] * len(self._parameters)
        self.fired = False
        if self.touched_tables:
            self.touched_tables = [False] * len(self.touched_tables)
        self._reset()
        return touched

    def again(self, write_header: Callable[[Tensor], None]) -> vectors.Flat:
        """Return all gradients again, in new memory; until `write` they are still in `.grad`."""
        fresh = self._blank(self._layout)
        vectors.pack([p.grad for p in self._parameters], fresh, scale=self.scale)
        write_header(vectors.header_in(fresh))
        return fresh

    def write(self, value: vectors.Flat, used: Sequence[bool]) -> None:
        """Make `value` the `.grad` of every parameter that is `used`.

        A gradient made in this backward pass gets no copy: `.grad` becomes a view of the vector, which is then never
        written again. An earlier one stays the same tensor and receives the numbers. So does one with a graph
        (`backward(create_graph=True)`): a second derivative is then of this worker's part of the mean.
        """
        lends = value is self.flat
        grads, numbers = [], []
        with torch.no_grad():
            for index, (p, place) in enumerate(zip(self._parameters, vectors.full_segments(value), strict=True)):
                if not used[index]:
                    continue
                grad = p.grad
                has_graph = grad is not None and grad.grad_fn is not None
                self.has_graph |= has_graph
                is_new = (grad is None or self.began_without[index]) and not has_graph
                if lends and is_new and p.dtype is place.dtype and local(p).is_contiguous():
                    p.grad = place.detach() if type(p) is Parameter else as_piece_of(p, place.detach())
                    self.is_lent = True
                else:
                    if grad is None:
                        grad = p.grad = torch.empty_like(p)
                    grads.append(local(grad))
                    numbers.append(place)
            if grads:
                torch._foreach_copy_(grads, numbers)

    def drop_graphs(self) -> None:
        """Detach gradients from their graphs before a step: a second derivative in it would be this worker's own."""
        self.has_graph = False
        for p in self._parameters:
            if p.grad is not None and p.grad.grad_fn is not None:
                p.grad = p.grad.detach()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def _is_final(parameter: Tensor, hook_id: int) -> bool:
    """Return whether no hook of the script, which may change the gradient, runs after the hook of this id."""
    hooks: dict[int, Any] = parameter._post_accumulate_grad_hooks or {}
    later = takewhile(lambda number: number != hook_id, reversed(hooks))
    return all(str(hooks[number].__module__).startswith("quorate.") for number in later)


def shares_up_to(layout: vectors.Layout) -> list[float]:
    """Return the share of all numbers that is in each part and those before it."""
    counts = [part.numel for part in layout.parts]
    return [count / max(1, sum(counts)) for count in accumulate(counts)]
