"""A model in stages over the workers of a pipeline, cut in place. Importing this module imports torch.

The schedule of a model is chosen by simulating each schedule with the measured times of its stages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.utils import _pytree as pytree

from quorate.core.axes import Zero
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.sharding.mesh import Coordinates
from quorate.sharding.stages import cut
from quorate.sharding.stages.choice import Cuts, StageChoice
from quorate.sharding.stages.clock import clock
from quorate.sharding.stages.cut import Cost, Stages, cut_evenly
from quorate.sharding.stages.delayed import DelayedPipeline
from quorate.sharding.stages.ending import Ending, norms_over_stages
from quorate.sharding.stages.orders import DELAYED, SCHEDULES, Layout, refusal, schedule_named
from quorate.sharding.stages.pipeline import Pipeline
from quorate.sharding.stages.route import Shapes, used_by
from quorate.sharding.stages.units import Unit, units_of
from quorate.sharding.traffic import Along
from quorate.wire.metered import Meter, Metered

_MICROBATCHES = 4
"""The default for each worker of a pipeline."""


def stages_for(model: Module, workers: int, wire: Wire, chosen: StageChoice, *, shards: int, zero: Zero) -> Stages:
    """Return the cut of `model` for so many workers; the same on all workers of `wire`, which all call it. Raises
    `ConfigurationError` for a model that has too few blocks, and for unknown schedules."""
    units, example = units_of(model), _as_args(chosen.example, model)
    costs, order = cut.costs_by_size(units), list(range(len(units)))
    if example is not None:
        costs, order = _measured(model, units, example, wire)
        missing = [unit.name for number, unit in enumerate(units) if number not in order]
        if missing:
            raise ConfigurationError(f"the model does not use {missing[0]} with the given example=")
        units, costs = [units[number] for number in order], [costs[number] for number in order]
    count = chosen.microbatches
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ConfigurationError(
            f"microbatches={count!r} is not a number of micro-batches; it must be a whole number (at least 1)"
        )
    count = _MICROBATCHES * workers if count is None else count
    layout = _layout(units, costs, workers, count, chosen, is_resharded=shards > 1 and zero == 3)
    stage_of = _cut(units, costs, layout, chosen.cuts)
    inside = {id(p) for unit in units for p in unit.module.parameters()}
    names = [name for name, p in model.named_parameters() if id(p) not in inside]
    if shards > 1:
        _check_shared(units, stage_of, layout)
    used = {} if example is None else used_by(model, units, names, example)
    direct = {name: stage_of[max(0, used.get(name, 0) - 1)] for name in names}
    table = cut.in_words(
        units, costs, stage_of, [layout.owner(stage) for stage in range(layout.stages)], is_measured=example is not None
    )
    how = "by measured time" if example is not None else "by parameters (give example= to cut by measured time)"
    how = {"auto": how, "memory": "by memory"}.get(chosen.cuts, "as set") if isinstance(chosen.cuts, str) else "as set"
    delay = f", gradients one batch old{' and corrected' if layout.corrects else ''}" if layout.is_delayed else ""
    words = (
        f"quorate: {layout.stages} stages on {workers} workers, cut {how}; {layout.name}, "
        f"{layout.microbatches} micro-batches{delay}\n{table}\n"
    )
    return Stages(layout, units, stage_of, direct, Shapes(model, units, stage_of, direct), words)


def _check_shared(units: Sequence[Unit], stage_of: Sequence[int], layout: Layout) -> None:
    holders: dict[tuple[int, int], str] = {}
    for unit, stage in zip(units, stage_of, strict=True):
        for p in unit.module.parameters():
            other = holders.setdefault((layout.owner(stage), id(p)), unit.name)
            if other != unit.name:
                raise ConfigurationError(
                    f"{other} and {unit.name} share parameters and lie on one worker under {layout.schedule}, where "
                    'each module is in shards by itself; take another schedule, such as "1f1b", or no shards'
                )


def _as_args(example: Any, model: Module) -> tuple[Any, ...] | None:
    """Return the example as arguments, with tensors on the model's device."""
    if example is None:
        return None
    device = next((p.device for p in model.parameters()), None)
    there = pytree.tree_map_only(Tensor, lambda x: x.to(device), example)
    return there if isinstance(there, tuple) else (there,)


def _measured(
    model: Module, units: Sequence[Unit], example: tuple[Any, ...], wire: Wire
) -> tuple[list[Cost], list[int]]:
    key = f"{wire.name}/stages"
    if wire.rank == 0:
        costs, order = cut.measured_costs(model, units, example)
        rows = [[cost.forward, cost.backward, cost.activations] for cost in costs]
        wire.board.set(key, json.dumps([rows, order]).encode())
    wire.board.wait([key])
    rows, order = json.loads(wire.board.get(key) or b"[[], []]")
    return [Cost(*row) for row in rows], order


def _layout(
    units: Sequence[Unit], costs: Sequence[Cost], workers: int, count: int, chosen: StageChoice, *, is_resharded: bool
) -> Layout:
    if chosen.schedule == "auto":
        return choose(units, costs, workers, count, is_resharded=is_resharded)
    if chosen.schedule == DELAYED:
        return Layout("gpipe", workers, 1, count, is_delayed=True, corrects=chosen.corrects)
    schedule = schedule_named(chosen.schedule)
    layout = Layout(chosen.schedule, workers, schedule.chunks or _chunks(chosen.cuts, workers), count)
    refused = refusal(layout.schedule, layout.workers, layout.chunks, layout.microbatches)
    if refused:
        raise ConfigurationError(refused)
    if schedule.is_split and is_resharded:
        others = ", ".join(name for name, other in SCHEDULES.items() if not other.is_split)
        raise ConfigurationError(
            f"{layout.schedule} makes backward passes in two halves, between which parameters have to stay gathered, "
            f"and zero=3 gives them back; take zero=2, or a schedule of {others}"
        )
    return layout


def _chunks(cuts: Cuts, workers: int) -> int:
    """Return the stages of a worker under a schedule that takes any number: by the names, or else two."""
    stages = 0 if isinstance(cuts, str) else len(cuts) + 1
    return max(2, stages // workers) if stages % workers == 0 else 2


def _cut(units: Sequence[Unit], costs: Sequence[Cost], layout: Layout, cuts: Cuts) -> list[int]:
    if cuts == "auto":
        return cut.cut_evenly(units, [cost.both for cost in costs], layout.stages)
    if cuts == "memory":
        return cut.cut_evenly(units, cut.memory_of(units, costs, layout.workers), layout.stages)
    if isinstance(cuts, str) or not all(isinstance(name, str) for name in cuts):
        raise ConfigurationError(
            f'stages={cuts!r} is unknown; it must be "auto", "memory", or the names of the modules with which '
            "stages begin"
        )
    return cut.cut_by_names(units, cuts, layout.stages)


def by_stages(model: Any, stages: Stages, coordinates: Coordinates, name: str) -> Pipeline:
    """Remove the layers of other stages from `model`, in place, and let a call of it go through all stages."""
    meter = Meter()
    wire = Metered(Metered(coordinates.along.channel(name), coordinates.traffic.meter), meter)
    layout, worker = stages.layout, coordinates.stage
    here = stages.here(worker)
    direct = {key for key, stage in stages.direct.items() if stage in layout.stages_of(worker)}
    own = {id(p) for unit in here for p in unit.module.parameters()} | {id(model.get_parameter(key)) for key in direct}
    tied = _tied(model, stages)
    inside = {id(part) for unit in here for part in unit.module.modules()}
    for unit in stages.units:
        for part in unit.module.modules():
            if id(part) not in inside:
                _take_off(part, own, stages.shapes)
    for key in stages.direct:
        if key not in direct:
            module, _, last = key.rpartition(".")
            _take_off(model.get_submodule(module), own, stages.shapes, only=last)
    kind = DelayedPipeline if layout.is_delayed else Pipeline
    pipeline = kind(model, stages.units, stages.stage_of, layout, stages.shapes, wire, coordinates.traffic)
    pipeline.ending = Ending(model, stages, coordinates, wire, tied)
    model.forward = pipeline.call
    norms_over_stages(pipeline.ending)
    coordinates.traffic.along = Along(pipeline.ending.holders, meter)
    return pipeline


def _tied(model: Module, stages: Stages) -> list[tuple[list[tuple[int, str]], list[int]]]:
    """Return the parameters of several workers: each one's name on each worker, and the workers."""
    names_by_worker: dict[int, dict[int, str]] = {}
    for unit, stage in zip(stages.units, stages.stage_of, strict=True):
        for key, p in unit.module.named_parameters(remove_duplicate=False):
            if p.requires_grad:
                names_by_worker.setdefault(id(p), {}).setdefault(stages.layout.owner(stage), f"{unit.name}.{key}")
    shared = [sorted(names.items()) for names in names_by_worker.values() if len(names) > 1]
    return [(names, [worker for worker, _ in names]) for names in shared]


def _take_off(module: Module, own: set[int], shapes: Shapes, only: str | None = None) -> None:
    """Replace tensors of `module` by ones without numbers, which are no parameters or buffers any more."""
    for kind in (module._parameters, module._buffers):
        for key, x in list(kind.items()):
            if x is None or (only is not None and key != only):
                continue
            del kind[key]
            module.__dict__[key] = shapes.fake(x)
    flat: Any = getattr(module, "_flat_weights", None)
    if isinstance(flat, list):  # a recurrent module keeps a list of its own
        module.__dict__["_flat_weights"] = [shapes.fake(x) if isinstance(x, Tensor) else x for x in flat]


_MOST_CHUNKS = 4
_WORTH = 0.98
"""A later schedule in the list must take less than this share of the best time so far."""


def choose(
    units: Sequence[Unit], costs: Sequence[Cost], workers: int, microbatches: int, *, is_resharded: bool
) -> Layout:
    """Return the layout with the shortest step, if sending takes no time.

    Simpler layouts come first, and win where others gain less than 2 %. Raises `ConfigurationError` where no schedule
    can be run.
    """
    best: tuple[float, Layout] | None = None
    refused = ""
    for name, schedule in SCHEDULES.items():
        if schedule.is_split and is_resharded:
            continue
        some = range(2, _MOST_CHUNKS + 1) if schedule.chunks is None else (schedule.chunks,)
        for chunks in some:
            layout = Layout(name, workers, chunks, microbatches)
            refused = refusal(name, workers, chunks, microbatches) or refused
            if refusal(name, workers, chunks, microbatches):
                continue
            try:
                seconds = seconds_of(layout, units, costs)
            except ConfigurationError as error:
                refused = str(error)
                continue
            if best is None or seconds < _WORTH * best[0]:
                best = seconds, layout
    if best is None:
        raise ConfigurationError(refused)
    return best[1]


def seconds_of(layout: Layout, units: Sequence[Unit], costs: Sequence[Cost]) -> float:
    """Return the seconds of one step. Raises `ConfigurationError` for too few blocks."""
    stage_of = cut_evenly(units, [cost.both for cost in costs], layout.stages)
    forward, backward = [0.0] * layout.stages, [0.0] * layout.stages
    for stage, cost in zip(stage_of, costs, strict=True):
        forward[stage] += cost.forward
        backward[stage] += cost.backward / 2
    return clock(layout.order(layout.microbatches), forward, backward, backward).seconds
