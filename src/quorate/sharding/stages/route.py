"""Tensors that pass from stage to stage in a call of a model, found by calling a copy of it that has shapes only.

Every worker runs the model's own code. On a worker, units of other stages are not calculated: they return tensors with
a shape and no numbers (torch's `FakeTensor`), and so do all operations on these. Where a unit of the worker's stage is
called with such a tensor, the numbers come from the stage that made it. These tensors are the same on all workers; they
are found once for inputs of each shape, without sending anything.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.nn import Module, Parameter
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from quorate.core.errors import ConfigurationError
from quorate.sharding.stages.units import Unit, gated, units_of

_STAGES = "_quorate_stages"


@dataclass(frozen=True)
class Transfer:
    """A tensor that one stage makes, and another one needs."""

    source: int
    target: int
    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True)
class Call:
    """One call of a unit."""

    unit: int
    stage: int
    takes: tuple[tuple[int, int], ...]
    """Places of received tensors among its arguments, with their transfers."""
    leaves: tuple[Any, ...]
    spec: Any
    """With `leaves`, its output on other workers: tensors without numbers."""


@dataclass
class Route:
    """The route for inputs of one shape."""

    calls: list[Call] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    outputs: tuple[Any, ...] = ()
    """The model's outputs; tensors of the last stage are without numbers."""
    spec: Any = None

    def sent_by(self, stage: int) -> list[int]:
        """Return the transfers from a stage."""
        return [number for number, transfer in enumerate(self.transfers) if transfer.source == stage]


def _of(x: Any) -> frozenset[int]:
    """Return the stages that have made `x` since its last unit; none where inputs alone have."""
    return getattr(x, _STAGES, frozenset())


class _Follows(TorchDispatchMode):
    """Marks tensors that are made outside of units with their stages."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        stages = frozenset[int]().union(*map(_of, pytree.tree_leaves((args, kwargs))))
        if stages:
            mark(output, stages)
        return output


def mark(tree: Any, stages: frozenset[int]) -> None:
    """Add `stages` to the marks of all tensors in `tree`."""
    for x in pytree.tree_leaves(tree):
        if isinstance(x, Tensor):
            setattr(x, _STAGES, _of(x) | stages)


class Shapes:
    """A copy of a model without numbers in its units, made before the model is cut. Cost: almost no memory."""

    def __init__(self, model: Module, units: Sequence[Unit], stage_of: Sequence[int], direct: dict[str, int]) -> None:
        """`direct` has the stages of parameters outside of units, by name."""
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        memo: dict[int, Any] = {}
        for x in (*model.parameters(), *(x for unit in units for x in unit.module.buffers())):
            memo[id(x)] = self.fake(x)
        try:
            self.model = copy.deepcopy(model, memo)
        except Exception as error:
            raise ConfigurationError(
                f"stages need a copy of the model without its numbers, and it cannot be copied: {error}"
            ) from None
        copies = {unit.name: unit for unit in units_of(self.model)}
        self.units, self.stage_of = [copies[unit.name] for unit in units], list(stage_of)
        for name, stage in direct.items():
            mark(self.model.get_parameter(name), frozenset({stage}))
        self._routes: dict[Any, Route] = {}

    def fake(self, x: Tensor) -> Tensor:
        """Return a fake tensor like `x`."""
        made: Tensor = self.mode.from_tensor(x.detach())
        return Parameter(made, requires_grad=False) if isinstance(x, Parameter) else made

    def route(self, args: tuple[Any, ...], kwargs: dict[str, Any], trains: Sequence[bool]) -> Route:
        """Return the route of a call; `trains` has for each module whether it is in training mode. Raises
        `ConfigurationError` for a model that cannot be computed in these stages."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        shapes = tuple((x.shape, x.dtype) if isinstance(x, Tensor) else repr(x) for x in leaves)
        casts = tuple((torch.is_autocast_enabled(on), torch.get_autocast_dtype(on)) for on in ("cpu", "cuda"))
        key = spec, shapes, tuple(trains), casts
        if key not in self._routes:
            for module, is_training in zip(self.model.modules(), trains, strict=True):
                module.training = is_training
            self._routes[key] = self._found(args, kwargs)
        return self._routes[key]

    def _found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Route:
        route = Route()
        transfers: dict[tuple[int, int], int] = {}
        held: list[Tensor] = []
        newest = 0

        def called(number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal newest
            unit, stage = self.units[number], self.stage_of[number]
            if stage < newest:
                raise ConfigurationError(
                    f"{unit.name} is in stage {stage} and is called after modules of stage {newest}; give "
                    "quorate.parallelize an example= of the model's inputs, so that it sees in which order modules run"
                )
            newest, takes = stage, []
            for place, x in enumerate(pytree.tree_leaves((args, kwargs))):
                if not isinstance(x, Tensor) or _of(x) <= {stage}:
                    continue
                source = self._source(x, f"{unit.name} (stage {stage})")
                key = id(x), stage
                if key not in transfers:
                    transfers[key] = len(route.transfers)
                    route.transfers.append(Transfer(source, stage, x.shape, x.dtype))
                    held.append(x)  # so that no other one has its id
                takes.append((place, transfers[key]))
            with _disable_current_modes():
                output = self._without_numbers(unit, args, kwargs)
            mark(output, frozenset({stage}))
            leaves, spec = pytree.tree_flatten(output)
            route.calls.append(Call(number, stage, tuple(takes), tuple(leaves), spec))
            return output

        with _drawing_nothing(), torch.no_grad(), gated(self.units, called), _Follows():  # type: ignore[no-untyped-call]
            output = self.model.forward(*args, **kwargs)
        last = max(self.stage_of)
        leaves, route.spec = pytree.tree_flatten(output)
        route.outputs = tuple(leaves)
        for x in leaves:
            if isinstance(x, Tensor) and not _of(x) <= {last}:
                raise ConfigurationError(
                    f"the model returns numbers that stage {self._source(x, 'its output')} has made, "
                    "and not the last one"
                )
        return route

    def _without_numbers(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            output = unit.module(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise ConfigurationError(
                f"what {unit.name} does depends on the numbers that it is given ({error}), and stages need its shapes "
                "beforehand"
            ) from None
        # Outputs that are made of inputs alone have numbers; on workers of other stages they have none.
        return pytree.tree_map_only(Tensor, self._faked, output)

    def _faked(self, x: Tensor) -> Tensor:
        # A new tensor also where a unit gives what it was given, as that one is of another stage.
        with self.mode:
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)

    def _source(self, x: Tensor, where: str) -> int:
        stages = sorted(_of(x))
        if len(stages) > 1:
            raise ConfigurationError(
                f"outputs of stages {stages[0]} and {stages[-1]} are combined outside of any module, on their way to "
                f"{where}. Let a module compute that, or give quorate.parallelize an example= of the model's inputs"
            )
        return stages[0]


@contextmanager
def _drawing_nothing() -> Iterator[None]:
    """Inside, draws of random numbers leave the generators unchanged."""
    before = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def used_by(model: Module, units: Sequence[Unit], names: Iterable[str], example: tuple[Any, ...]) -> dict[str, int]:
    """Return how many units are called before the first use of each of these parameters, which lie outside of units."""
    from torch.overrides import TorchFunctionMode

    wanted = {id(model.get_parameter(name)): name for name in names}
    uses: dict[str, int] = {}
    calls = 0

    class Looks(TorchFunctionMode):
        def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
            for x in pytree.tree_leaves((args, kwargs)):
                if id(x) in wanted:
                    uses.setdefault(wanted[id(x)], calls)
            return func(*args, **(kwargs or {}))

    def called(number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        return units[number].module(*args, **kwargs)

    if wanted:
        with _drawing_nothing(), torch.no_grad(), gated(units, called), Looks():
            model.forward(*example)
    return uses
