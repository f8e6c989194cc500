"""The cut of a model into stages: as even as the units allow, by measured times, or by their parameters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Embedding, EmbeddingBag, Module
from torch.utils import _pytree as pytree

from quorate.core.errors import ConfigurationError
from quorate.sharding.stages.orders import Layout
from quorate.sharding.stages.route import Shapes
from quorate.sharding.stages.units import Unit, gated

_TIMES = 2
"""Measurements of each unit; the shortest counts."""
_BYTES_KEPT = 4
"""Bytes of parameters, gradients, and about two numbers of the optimizer, for each number."""


@dataclass
class Cost:
    """The cost of one unit, for the examples with which it was measured."""

    forward: float
    """Seconds; without a measurement, multiplied numbers."""
    backward: float
    activations: int = 0
    """Bytes that are kept for the backward pass."""

    @property
    def both(self) -> float:
        """The cost of both passes."""
        return self.forward + self.backward


def costs_by_size(units: Sequence[Unit]) -> list[Cost]:
    """Return the numbers of matrices, which a linear layer uses once a position; embeddings are only looked up. For
    convolutions this is a poor estimate, as their cost depends on the size of the image."""
    return [Cost(float(size), 2.0 * size) for size in map(_multiplied, units)]


def _multiplied(unit: Unit) -> int:
    seen = {
        id(p): p.numel() if p.dim() > 1 and not isinstance(part, Embedding | EmbeddingBag) else p.shape[0]
        for part in unit.module.modules()
        for p in part.parameters(recurse=False)
    }
    return sum(seen.values())


def measured_costs(model: Module, units: Sequence[Unit], example: tuple[Any, ...]) -> tuple[list[Cost], list[int]]:
    """Call `model` with `example`, and measure each unit's forward and backward pass.

    Returns the costs, and the order of first calls. Buffers and random numbers are restored, and no gradient remains.
    Memory: the full model, and the activations of one unit at a time.
    """
    costs = [Cost(0.0, 0.0) for _ in units]
    calls: list[int] = []

    def called(number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if number not in calls:
            calls.append(number)
        return _measured(units[number].module, args, kwargs, costs[number])

    buffers = [(x, x.clone()) for x in model.buffers()]
    with torch.random.fork_rng(devices=[]), torch.no_grad(), gated(units, called):
        model.forward(*example)
    with torch.no_grad():
        for x, before in buffers:
            x.copy_(before)
    return costs, calls


def _measured(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], cost: Cost) -> Any:
    parameters = [p for p in module.parameters() if p.requires_grad]
    leaves, spec = pytree.tree_flatten((args, kwargs))
    along = [*parameters, *(x for x in leaves if isinstance(x, Tensor))]
    best, kept = (float("inf"), float("inf")), 0
    output: Any = None
    for _ in range(_TIMES):
        inputs = [
            x.detach().clone().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x
            for x in leaves
        ]
        own_args, own_kwargs = pytree.tree_unflatten(inputs, spec)
        kept = 0

        def keep(x: Tensor) -> Tensor:
            nonlocal kept
            kept += x.numel() * x.element_size() * (not x.is_leaf)
            return x

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            begin = _now(along)
            output = module(*own_args, **own_kwargs)
            forward = _now(along) - begin
        ends = [x for x in pytree.tree_leaves(output) if isinstance(x, Tensor) and x.requires_grad]
        wanted = [*parameters, *(x for x in inputs if isinstance(x, Tensor) and x.requires_grad)]
        begin = _now(along)
        if ends and wanted:
            torch.autograd.grad(ends, wanted, [torch.ones_like(x) for x in ends], allow_unused=True)
        best = min(best, (forward, _now(along) - begin), key=sum)
    cost.forward, cost.backward, cost.activations = cost.forward + best[0], cost.backward + best[1], kept
    return pytree.tree_map_only(Tensor, Tensor.detach, output)


def _now(tensors: Sequence[Tensor]) -> float:
    """Return the time in seconds, once the GPUs of `tensors` have completed their work."""
    for device in {p.device for p in tensors if p.device.type == "cuda"}:
        torch.cuda.synchronize(device)
    return time.perf_counter()


def cut_evenly(units: Sequence[Unit], costs: Sequence[float], stages: int) -> list[int]:
    """Return the stage of each unit, so that the most costly stage is as cheap as possible.

    Cuts are made before blocks, and after the last one. Cost: O(units^2 x stages). Raises `ConfigurationError`
    where there are fewer places than cuts.
    """
    places = [0, *(place for place in range(1, len(units)) if _may_begin(units, place))]
    if len(places) < stages:
        pieces = "1 piece" if len(places) == 1 else f"{len(places)} pieces"
        raise ConfigurationError(
            f"the model has {pieces} that could be a stage (blocks in a list or Sequential), and {stages} stages are "
            "asked for"
        )
    ends = [*places[1:], len(units)]
    weights = [sum(costs[begin:end]) for begin, end in zip(places, ends, strict=True)]
    sums = [0.0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    count = len(weights)
    best: list[list[tuple[float, int]]] = [[(float("inf"), 0)] * (count + 1) for _ in range(stages + 1)]
    best[0][0] = (0.0, 0)
    for stage in range(1, stages + 1):
        for end in range(stage, count + 1):
            best[stage][end] = min(
                (max(best[stage - 1][begin][0], sums[end] - sums[begin]), -begin) for begin in range(stage - 1, end)
            )
    stage_of, end = [0] * len(units), count
    for stage in range(stages, 0, -1):
        begin = -best[stage][end][1]
        for place in range(places[begin], ends[end - 1]):
            stage_of[place] = stage - 1
        end = begin
    return stage_of


def _may_begin(units: Sequence[Unit], place: int) -> bool:
    return units[place].is_block or (units[place - 1].is_block and not units[place].is_block)


def cut_by_names(units: Sequence[Unit], names: Sequence[str], stages: int) -> list[int]:
    """Return the stage of each unit, where stages begin with these. Raises `ConfigurationError`."""
    place_of = {unit.name: place for place, unit in enumerate(units)}
    wrong = next((name for name in names if name not in place_of), None)
    if wrong is not None:
        raise ConfigurationError(
            f'stages has "{wrong}", which is not a module that a stage could begin with; known: {_few(list(place_of))}'
        )
    begins = [place_of[name] for name in names]
    if begins != sorted(set(begins)) or 0 in begins:
        raise ConfigurationError(
            "stages must list the first module of each stage but the first, in the order of the model"
        )
    if len(begins) + 1 != stages:
        raise ConfigurationError(f"stages lists {len(begins)} modules, but {stages} stages need {stages - 1}")
    return [sum(place >= begin for begin in begins) for place in range(len(units))]


def _few(names: list[str]) -> str:
    return ", ".join(names) if len(names) < 13 else f"{', '.join(names[:6])}, ..., {', '.join(names[-6:])}"


def memory_of(units: Sequence[Unit], costs: Sequence[Cost], held: int) -> list[float]:
    """Return the bytes of each unit, with the activations of `held` micro-batches."""
    return [
        float(_BYTES_KEPT * sum(p.numel() * p.element_size() for p in unit.module.parameters()))
        + held * cost.activations
        for unit, cost in zip(units, costs, strict=True)
    ]


def in_words(
    units: Sequence[Unit], costs: Sequence[Cost], stage_of: Sequence[int], workers: Sequence[int], *, is_measured: bool
) -> str:
    """Return a table of the stages."""
    head = ["stage", "worker", "modules", "parameters", "ms" if is_measured else "share"]
    head += ["kept MB"] * is_measured
    rows = [head]
    total = sum(cost.both for cost in costs) or 1.0
    for stage, worker in enumerate(workers):
        own = [place for place, unit_stage in enumerate(stage_of) if unit_stage == stage]
        names = [units[place].name for place in own]
        modules = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        seconds = sum(costs[place].both for place in own)
        size = sum(units[place].size for place in own)
        row = [str(stage), str(worker), modules, f"{size:,}"]
        row += [f"{1e3 * seconds:.1f}" if is_measured else f"{seconds / total:.0%}"]
        row += [f"{sum(costs[place].activations for place in own) / 1e6:.1f}"] * is_measured
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


@dataclass
class Stages:
    """The division of a model that is about to be cut: every worker still holds all of it."""

    layout: Layout
    units: list[Unit]
    stage_of: list[int]
    direct: dict[str, int]
    """The stages of parameters outside of units."""
    shapes: Shapes
    words: str

    def here(self, worker: int) -> list[Unit]:
        """Return the units of a worker."""
        own = self.layout.stages_of(worker)
        return [unit for unit, stage in zip(self.units, self.stage_of, strict=True) if stage in own]

    @property
    def cut(self) -> list[list[str]]:
        """The units of each worker, and its parameters outside of units, by name."""
        names = [[unit.name for unit in self.here(worker)] for worker in range(self.layout.workers)]
        for name, stage in self.direct.items():
            names[self.layout.owner(stage)].append(name)
        return names

    def blocks(self, worker: int) -> list[tuple[str, Module]]:
        """Return the modules of a worker, each once, by name."""
        return list({id(unit.module): (unit.name, unit.module) for unit in self.here(worker)}.values())
