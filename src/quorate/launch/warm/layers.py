"""The quantity, such as seconds or operations, that each layer of a model takes of both passes.

A layer is a module with what it computes itself, without the modules inside of it. In the forward pass it is the time
between the hooks of a module. The backward pass consists of nodes of autograd. A node belongs to the layer in whose
forward pass it was made, together with the nodes that accumulate gradients of its parameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module

from quorate.launch.warm.loading import bytes_of

Meter = Callable[[], float]
"""A number that only rises, such as the clock."""


@dataclass
class _Frame:
    """A pass of a layer that is running."""

    name: str
    begin: float
    inside: float = 0.0
    """The part of other layers meanwhile."""
    boundary: tuple[Any, ...] = ()
    """Nodes of autograd at which the layer's own begin."""


class Layers:
    """Sums of each layer, by name; hooks do nothing while `meter` is None."""

    def __init__(self, model: Module) -> None:
        """Watch all modules of `model`; each has the first of its names."""
        self.meter: Meter | None = None
        self.taken: dict[str, list[float]] = {}
        """The sums of a layer in forward and in backward passes, since `begin`."""
        self.moved: dict[str, int] = {}
        """Bytes of the newest input and output of a layer."""
        self._frames: list[_Frame] = []
        self._handles: list[Any] = []
        self._claimed: dict[Any, str] = {}
        for name, module in model.named_modules():
            self._watch(name, module)

    def begin(self, meter: Meter | None) -> None:
        """Begin to measure by `meter`, or stop; forget what was measured."""
        for handle in self._handles:
            handle.remove()
        self.meter, self.taken = meter, defaultdict(lambda: [0.0, 0.0])
        self._frames, self._handles, self._claimed = [], [], {}

    def _watch(self, name: str, module: Module) -> None:
        def enters(_: Module, args: Any, kwargs: Mapping[str, Any]) -> None:
            if self.meter is not None:
                boundary = tuple(_nodes((args, kwargs)))
                self.moved[name] = bytes_of([args, dict(kwargs)])
                self._enter(name, boundary)

        def leaves(_: Module, __: Any, output: Any) -> None:
            if self.meter is None or not any(frame.name == name for frame in self._frames):
                return
            frame = self._leave(name, 0)
            since = self.meter()
            self.moved[name] = self.moved.get(name, 0) + bytes_of(output)
            self._claim(name, _nodes(output), frame.boundary)
            if self._frames:  # looking at the graph is nobody's
                self._frames[-1].inside += self.meter() - since

        module.register_forward_pre_hook(enters, with_kwargs=True)
        module.register_forward_hook(leaves, always_call=True)

    def _enter(self, name: str, boundary: tuple[Any, ...] = ()) -> None:
        assert self.meter is not None
        self._frames.append(_Frame(name, self.meter(), boundary=boundary))

    def _leave(self, name: str, which: int) -> _Frame:
        assert self.meter is not None
        now = self.meter()
        while (frame := self._frames.pop()).name != name:
            pass  # a pass that has raised
        elapsed = now - frame.begin
        self.taken[name][which] += elapsed - frame.inside
        if self._frames:
            self._frames[-1].inside += elapsed
        return frame

    def _claim(self, name: str, nodes: Iterable[Any], boundary: tuple[Any, ...]) -> None:
        """Watch the nodes behind `nodes`, up to those of the layer's input, that belong to no layer yet."""
        seen, waiting = set(boundary), list(nodes)
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
            if node not in self._claimed:
                self._claimed[node] = name
                self._watch_node(name, node)

    def _watch_node(self, name: str, node: Any) -> None:
        def enters(_: Any) -> None:
            if self.meter is not None:
                self._enter(name)

        def leaves(*_: Any) -> None:
            if self.meter is not None and any(frame.name == name for frame in self._frames):
                self._leave(name, 1)

        self._handles += [node.register_prehook(enters), node.register_hook(leaves)]


def _nodes(tensors: Any) -> Iterator[Any]:
    """Yield the nodes of autograd that have made the tensors in lists, tuples and dicts."""
    if isinstance(tensors, Tensor):
        if tensors.grad_fn is not None:
            yield tensors.grad_fn
    elif isinstance(tensors, Mapping):
        for x in tensors.values():
            yield from _nodes(x)
    elif isinstance(tensors, list | tuple):
        for x in tensors:
            yield from _nodes(x)
