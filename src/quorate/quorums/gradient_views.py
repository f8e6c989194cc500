"""Gradients of large models that lie in their contribution to a round from the backward pass on.

A hook copies each new gradient to its place in a vector of shared memory, and `.grad` becomes a view of that place. So
clipping and unscaling change the contribution, and a step copies nothing. After the step rounds own the vector, and
nobody writes to it. `.grad` keeps its numbers: it becomes a view of the same memory whose pages are copied when they
are written to.

Only a script that sets gradients to None after each step is served; the first step shows whether it does. Another
one, such as one with `zero_grad(set_to_none=False)` or with gradients in memory of its own, keeps its tensors, and a
step copies them. Cost: a copy of each gradient, in place of that of the step; two calls of the system for each part of
the vector. No page is copied unless the script writes to gradients between a step and `zero_grad`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat, Layout, count_holders, mask_of
from quorate.observe.step_observer import NEVER, Observers, Phase, StepObserver

LEAST_BYTES = 1 << 25
"""Bytes of the gradients of one model from which on they lie in contributions."""


def may_be_views(parameters: Sequence[Parameter], layout: Layout) -> bool:
    """Return whether gradients of `parameters` may lie in a vector of `layout`: large, plain, and of its dtype."""
    return sum(p.nbytes for p in parameters) >= LEAST_BYTES and all(
        type(p) is Parameter
        and p.is_cpu
        and p.is_contiguous()
        and p.dtype is layout.parts[segment.part].dtype
        and mask_of(segment) is None
        for p, segment in zip(parameters, layout.segments, strict=True)
    )


class GradientViews(StepObserver):
    """The gradients of `parameters` in vectors that `blank` makes, in memory of `wire`; belongs to one thread."""

    phase = Phase.TRAIN

    def __init__(
        self, parameters: Sequence[Parameter], blank: Callable[[], Flat], wire: Wire, observers: Observers
    ) -> None:
        self._parameters, self._blank, self._wire, self._observers = parameters, blank, wire, observers
        self._hooks: list[RemovableHandle] = []
        self._has_stepped = False
        self.lent: Callable[[], bool] | None = None
        """Returns whether `.grad` shows the numbers of the newest contribution; None: it never did."""
        self._vector: Flat | None = None
        self._own = 0
        """The number of tensors that share the memory of the vector, without those that are in `.grad`."""
        self._views: list[Tensor | None] = [None] * len(parameters)
        self._are_new = [False] * len(parameters)
        """Whether each parameter had no gradient when this backward pass began."""
        observers.add(self)

    def backward_begins(self) -> None:
        """Note the gradients before a backward pass; serve the script from the second step on."""
        are_new = self._are_new = [p.grad is None for p in self._parameters]
        if not self._has_stepped:
            return
        if not self._hooks and all(are_new):
            self._hooks = [
                p.register_post_accumulate_grad_hook(self._hook(index)) for index, p in enumerate(self._parameters)
            ]
        elif not self._hooks or (self._vector is None and not all(are_new)):
            self.close()  # the script keeps its gradients
            return
        if self._vector is not None and all(are_new):
            self._views = [None] * len(self._parameters)
            if count_holders(self._vector) > self._own:
                self._vector = None  # the script holds gradients of the pass before

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def place(parameter: Tensor) -> None:
            grad = parameter.grad
            if grad is None or grad is self._views[index] or not self._are_new[index]:
                return
            if grad.layout is not torch.strided or grad.grad_fn is not None or type(grad) is not Tensor:
                return
            if self._vector is None:
                self._vector = self._blank()
                self._vector.segments()
                self._own = count_holders(self._vector)
            view = self._vector.segment(index).detach()
            with torch.no_grad():
                view.copy_(grad)
            parameter.grad = self._views[index] = view

        return place

    def take(self, *, as_it_is: bool) -> Flat | None:
        """Return the vector with all gradients, whose header is to be written; None where they have to be copied.

        Nobody writes to its numbers any more: `.grad` becomes a copy whose pages are made when they are written to.
        With `as_it_is` a contribution is the gradient, and not a multiple of it.
        """
        self._has_stepped, self.lent = True, None
        vector, views = self._vector, self._views
        if vector is None or not as_it_is:
            return None
        lent = [place for place, p in enumerate(self._parameters) if p.grad is not None and p.grad is views[place]]
        if not lent or (private := self._private(vector)) is None:
            return None
        for place in lent:
            self._parameters[place].grad = private.segment(place).detach()
        self._views = views = [None] * len(self._parameters)
        if count_holders(vector) > self._own:  # the script holds a gradient, and may write to it
            for place in lent:
                views[place] = self._parameters[place].grad = vector.segment(place).detach()
            return None
        with torch.no_grad():
            for place in set(range(len(self._parameters))).difference(lent):
                grad = self._parameters[place].grad
                vector.segment(place).zero_() if grad is None else vector.segment(place).copy_(grad)
        copies = [StorageWeakRef(part.untyped_storage()) for part in private.parts]
        self._vector, self.lent = None, lambda: not all(copy.expired() for copy in copies)
        return vector

    def _private(self, vector: Flat) -> Flat | None:
        """Return a copy of `vector` whose pages are made when they are written to; None where that is impossible."""
        parts = []
        for part in vector.parts:
            loan = self._wire.lend(part)
            if loan is None:
                parts.append(part.clone())
                continue
            try:
                numbers = self._wire.borrow(loan, copy_of=part)
            except ConfigurationError:
                return None
            parts.append(numbers.view(part.dtype))
        return Flat(parts, vector.layout)

    def close(self) -> None:
        """Copy gradients from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._vector, self._has_stepped = [], None, False
        self.due = NEVER


def scaled(grads: Sequence[Tensor | None], factor: float) -> list[Tensor | None]:
    """Return each of `grads` times `factor`; None stays None."""
    return [None if x is None else x * factor for x in grads]
