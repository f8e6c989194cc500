"""`OnHost`: a reducer of vectors on a GPU that works in the memory of the hosts, where its exchanges begin and end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from quorate.core.contracts import Work
from quorate.core.device_copies import event_on, record
from quorate.core.vectors import Flat, Layout, header_in, in_layout, layout_on_cpu, placeholder
from quorate.means.reducer import Reducer
from quorate.means.wrapped import Wrapped
from quorate.wire.work import Together

if TYPE_CHECKING:
    from torch import Tensor


class OnHost(Wrapped):
    """`inner`, whose layout is on the CPU, for vectors with the same `layout` on a GPU.

    Each part is copied into pinned memory behind the work of the GPU, and handed to `inner` once it is there. Results
    are copied back in the same way. The only wait for the GPU is that of `start`, for the last part.
    """

    def __init__(self, inner: Reducer, layout: Layout) -> None:
        super().__init__(inner)
        self.layout = layout
        self._copies: dict[int, Work[Tensor]] = {}
        self._launched = 0
        """Parts of the current sum that `inner` has."""
        self._read = deque[tuple[Any, Flat]]()
        """Results that the GPU may still read, with the events after which it has."""
        self._header: Tensor | None = None

    @property
    def inner(self) -> Reducer:
        return self._inner

    def part_ready(self, part: int, x: Tensor) -> None:
        self.wire.tell_of_host(x.device)
        while self._read and (self._read[0][0] is None or self._read[0][0].query()):
            self._read.popleft()
        self._copies[part] = self._copy(x)
        while (copy := self._copies.get(self._launched)) is not None and copy.done():
            self._launch(copy.wait())

    def _copy(self, x: Tensor) -> Work[Tensor]:
        memory = self.wire.empty(x.numel(), x.dtype)
        return self.wire.on_host(x, memory if memory.is_pinned() else None)

    def _launch(self, x: Tensor) -> None:
        self._inner.part_ready(self._launched, x)
        self._launched += 1

    def start(self, x: Flat, kept: Callable[[], Flat] | None = None) -> Work[Flat]:
        for part, tensor in enumerate(x.parts):
            if part not in self._copies and x.layout is self.layout:
                self.part_ready(part, tensor)
            elif part not in self._copies:  # of a longer vector, whose parts `inner` takes together
                self._copies[part] = self._copy(tensor)
        numbers = self._there([self._copies[part] for part in range(len(x.parts))])
        flat = Flat(numbers, layout_on_cpu(x.layout))
        while x.layout is self.layout and self._launched < len(numbers):
            self._launch(numbers[self._launched])
        self._copies, self._launched = {}, 0
        work = self._inner.start(flat, None if kept is None else lambda: self._on_host(kept()))

        def back(results: list[Flat]) -> Flat:
            event = event_on(x.parts[-1].device)
            for place, summed in zip(x.parts, results[0].parts, strict=True):
                place.copy_(summed, non_blocking=event is not None)
            if event is not None:
                record(event, x.parts[-1].device)
            self._header = header_in(results[0]).clone()
            self._read.append((event, results[0]))
            return x

        return Together([work], back, self.wire.clock)

    def header_of(self, sums: Flat) -> Tensor | None:
        return self._header

    def _there(self, copies: Sequence[Work[Tensor]]) -> list[Tensor]:
        """Return copies that were begun in this order; the GPU is waited for once, as it makes them in order."""
        copies[-1].wait()
        return [copy.wait() for copy in copies]

    def _on_host(self, x: Flat) -> Flat:
        return Flat(self._there([self._copy(part) for part in x.parts]), layout_on_cpu(x.layout))

    def abandon(self, x: Flat) -> Work[list[Any]]:
        self._copies, self._launched = {}, 0
        return self._inner.abandon(placeholder(layout_on_cpu(x.layout)))

    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        copy = self._copy(x).wait()
        return Together([self._inner.again(part, copy)], lambda sums: x.copy_(sums[0]), self.wire.clock)

    def message(self, x: Flat) -> tuple[Tensor, ...]:
        return self._inner.message(self._on_host(x))

    def sum_of(
        self, messages: Sequence[tuple[Tensor, ...]], ranks: Sequence[int], hosts: Sequence[int], like: Flat
    ) -> Flat:
        here = placeholder(layout_on_cpu(like.layout))
        self._header = None
        return in_layout(self._inner.sum_of(messages, ranks, hosts, here), like.layout)
