"""A wire whose collectives all go by messages, as those of real processes do whenever they are new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

from torch import Tensor

from quorate.core.contracts import Wire, Work, Write
from quorate.wire.group import GroupWire
from quorate.wire.metered import Wrapped

T = TypeVar("T")


class ByMessages(Wrapped):
    """Over sends and receives of `inner`: a worker can die between two messages of one collective."""

    @cached_property
    def _all(self) -> Wire:
        return GroupWire(self.inner, range(self.size))

    def _again(self, inner: Wire) -> Wire:
        return ByMessages(inner)

    def _call(self, operation: str, launch: Callable[[], Work[T]], given: Any, peer: int | None) -> Work[T]:
        return launch()

    def channel(self, name: str) -> Wire:
        return self._channels.setdefault(name, super().channel(name))

    @cached_property
    def _channels(self) -> dict[str, Wire]:
        return {}

    def all_reduce(self, x: Tensor) -> Work[Tensor]:
        return self._all.all_reduce(x)

    def all_reduce_narrow(self, x: Tensor) -> Work[Tensor]:
        return self._all.all_reduce_narrow(x)

    def reduce_scatter(self, x: Tensor) -> Work[Tensor]:
        return self._all.reduce_scatter(x)

    def all_gather(self, x: Tensor, *, shared: bool = False) -> Work[list[Tensor]]:
        return self._all.all_gather(x, shared=shared)

    def all_gather_into(self, x: Tensor, write: Write) -> Work[Tensor]:
        return self._all.all_gather_into(x, write)

    def all_to_all(
        self, pieces: Sequence[Tensor], *, shared: bool = False, shapes: Sequence[Sequence[int]] | None = None
    ) -> Work[list[Tensor]]:
        return self._all.all_to_all(pieces, shared=shared)

    def all_to_all_single(self, x: Tensor) -> Work[list[Tensor]]:
        return self._all.all_to_all_single(x)

    def broadcast(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        return self._all.broadcast(x, root)

    def reduce(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        return self._all.reduce(x, root)

    def gather(self, x: Tensor, root: int = 0) -> Work[list[Tensor] | None]:
        return self._all.gather(x, root)

    def scatter(self, pieces: Sequence[Tensor] | None, root: int = 0) -> Work[Tensor]:
        return self._all.scatter(pieces, root)

    def barrier(self) -> Work[None]:
        return self._all.barrier()
