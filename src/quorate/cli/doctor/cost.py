"""`quorate doctor --cost`: what each layer and part of a step of a script takes, also among many workers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quorate.cli.doctor import memory as needs
from quorate.cli.tables import paragraphs, table, terminal_width
from quorate.core.draws import mixed
from quorate.launch.warm.alone import measured
from quorate.planning.cost_sheet import Cut, Layer, Sheet, Step, cuts
from quorate.report.wording import bytes_in_words, counted, number_in_words, seconds_in_words, share_in_words
from quorate.simulation.links import Links
from quorate.simulation.models import times_of
from quorate.simulation.played import Case

PROGRAM = "quorate.launch.warm.costing"
STEPS = 9
"""Steps that a script makes at least."""
USUAL_WORKERS = 8
WORKERS = (2, 8, 64, 1000)
MOST_WORKERS = 10_000
_SHOWN = 12
"""Layers in the table."""
_FLOPS = (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3))
_SIMULATED = 40
_DRAWS = 0xC057


@dataclass(frozen=True)
class _Measured:
    """The seconds of workers that are like the measured one; each step of each worker is one of the measured steps."""

    sheet: Sheet

    def before(self, rank: int, step: int) -> float:
        """Return the seconds up to the end of the backward pass."""
        steps = self.sheet.steps
        return max(0.0, steps[mixed(_DRAWS, rank, step) % len(steps)] - self.sheet.update)

    def backward(self, rank: int, step: int) -> float:
        """Return those of the backward pass."""
        return max(0.0, self.before(rank, step) - self.sheet.data) * self.sheet.backward_share

    def after(self, rank: int, step: int) -> float:
        """Return those of the update."""
        return self.sheet.update


def measure(script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run the script alone, with the threads that workers of `quorate run` have; return the answer.

    Raises `ConfigurationError` for a script that makes too few steps, and `QuorateError` for one that fails.
    """
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    return measured(script, arguments, program=PROGRAM, steps=STEPS, environment=threads)


def step_of(sheet: Sheet, workers: int, links: Links, share: float = 1.0) -> Step:
    """Return the simulated step of so many workers under all-reduce; `share`: of the gradients' bytes that is sent."""
    if workers == 1:
        compute = max(0.0, sheet.mean - sheet.data - sheet.update)
        return Step(workers=1, compute=compute, wire=0.0, wait=0.0, data=sheet.data, update=sheet.update)
    from quorate.simulation.figures import figures_of

    numbers = max(1, round(share * sheet.gradients / 4))
    case = Case(workers=workers, steps=_SIMULATED, parameters=numbers, busy=_Measured(sheet), links=links)
    figures = figures_of(times_of("all-reduce", {}).play(case), workers, _SIMULATED)
    seconds = workers / figures.steps_per_second
    wire, wait = figures.communication_share * seconds, figures.waiting_share * seconds
    compute = max(0.0, seconds - wire - wait - sheet.data - sheet.update)
    return Step(workers=workers, compute=compute, wire=wire, wait=wait, data=sheet.data, update=sheet.update)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """A script's cost sheet, alone and among many workers."""

    answer: Mapping[str, Any]
    sheet: Sheet
    links: Links
    workers: int
    """Workers of the column of the wire, and of the advice."""
    steps: Sequence[Step]
    cuts: Sequence[Cut]

    def wire_of(self, layer: Layer) -> float:
        """Return the seconds for which the layer's gradients keep a link busy."""
        return self.links.all_reduce(layer.gradients, self.workers).transmission

    @property
    def step(self) -> Step:
        """The step of `workers`."""
        return next(step for step in self.steps if step.workers == self.workers)


def costs_from(answer: Mapping[str, Any], workers: int, links: Links, script: str) -> Costs:
    """Return the sheet with the simulated steps, and what to cut for `workers`."""
    sheet = Sheet.from_answer(answer)
    steps = [step_of(sheet, count, links) for count in sorted({1, *WORKERS, workers})]
    step = next(step for step in steps if step.workers == workers)
    halved = step_of(sheet, workers, links, 0.5)
    return Costs(
        answer=answer, sheet=sheet, links=links, workers=workers, steps=steps,
        cuts=cuts(sheet, step, halved, answer["optimizer"], script),
    )  # fmt: skip


def as_json(costs: Costs) -> str:
    """Return it as one JSON object."""
    sheet, answer = costs.sheet, costs.answer
    layers = [
        asdict(layer)
        | {
            "seconds": layer.seconds,
            "share_of_peak": sheet.share_of_peak(layer),
            "wire": costs.wire_of(layer),
            "update": sheet.update_of(layer),
        }
        for layer in sheet.layers
    ]
    (alone,) = (layout for layout in needs.lines(answer, 1, None, None) if layout.workers == 1)
    about = {name: answer[name] for name in ("model", "optimizer", "device")}
    about |= {name: answer["cost"][name] for name in ("threads", "dtype")}
    parts = {name: getattr(sheet, name) for name in ("in_layers", "outside", "data", "update", "total", "seconds")}
    return json.dumps(
        {
            **about,
            "peak": sheet.peak,
            "bandwidth": sheet.bandwidth,
            "network": costs.links.text,
            "layers": layers,
            "step": parts,
            "memory": asdict(alone)["held"],
            "workers": [step.as_json() for step in costs.steps],
            "advice_for": costs.workers,
            "cuts": [asdict(cut) for cut in costs.cuts],
        },
        indent=2,
        ensure_ascii=False,
    )


def in_words(costs: Costs) -> Iterator[str]:
    """Yield the table of layers, that of numbers of workers, and what to cut."""
    sheet, cost = costs.sheet, costs.answer["cost"]
    numbers = sum(layer.parameters for layer in sheet.layers)
    yield from paragraphs(
        f"{costs.answer['model']}: {numbers:,} parameters, {costs.answer['optimizer']}, on {costs.answer['device']} "
        f"with {counted(cost['threads'], 'thread')}. Peak of a product of matrices ({cost['dtype']}): "
        f"{flops_in_words(sheet.peak)}/s.",
        "",
    )
    slowest = sorted(sheet.layers, key=lambda layer: -layer.seconds)
    shown = slowest if len(slowest) <= _SHOWN + 1 else slowest[:_SHOWN]
    rows = [_row(costs, layer, f"{layer.name or 'the model itself'} ({layer.kind})") for layer in shown]
    if others := slowest[len(shown) :]:
        rows.append(_row(costs, _together(others), f"{len(others)} other layers"))
    rows += [
        [name, *["–"] * 3, seconds_in_words(seconds), *["–"] * 4]
        for name, seconds in (("outside of layers", sheet.outside), ("waiting for data", sheet.data))
        if seconds > 0
    ]
    rows.append(["update", *["–"] * 3, seconds_in_words(sheet.update), *["–"] * 4])
    total = _row(costs, _together(sheet.layers), "a step")
    rows.append([*total[:4], seconds_in_words(sheet.total), *total[5:]])
    heads = ["layer", "parameters", "operations", "kept", "time", "of peak", "gradients", "on the wire",
             "in the update"]  # fmt: skip
    yield from table(heads, rows, terminal_width(), bold={len(rows) - 1})
    yield from paragraphs(
        "",
        "Averages of the middle half of the steps of one worker alone. On the wire: seconds for which a sum over "
        f"{counted(costs.workers, 'worker')} keeps a link busy ({costs.links.text}). Kept: activations for the "
        "backward pass.",
        "",
    )
    heads = ["workers", "a step", "compute", "on the wire", "waiting", "data", "update"]
    parts = ("compute", "wire", "wait", "data", "update")
    yield from table(
        heads,
        [
            [f"{step.workers:,}", *(seconds_in_words(x) for x in (step.seconds, *(getattr(step, p) for p in parts)))]
            for step in costs.steps
        ],
        terminal_width(),
    )
    yield from paragraphs(
        "",
        "Averages of all steps. One worker is measured, others are simulated under all-reduce, with the same batch "
        "for each worker. They wait for each other as far as the timed steps vary.",
        "",
        *(sentence_of(cut, costs.step) for cut in costs.cuts),
    )


def sentence_of(cut: Cut, step: Step) -> str:
    """Return the advice with its gain."""
    share, whose = share_in_words(cut.seconds / step.seconds), counted(step.workers, "worker")
    return f"At most {seconds_in_words(cut.seconds)} ({share}) of a step of {whose} can be saved: {cut.advice}."


def flops_in_words(flops: float) -> str:
    """`983 kFLOP`, `1.97 GFLOP`."""
    for unit, size in _FLOPS:
        if flops >= size:
            return f"{number_in_words(flops / size)} {unit}"
    return f"{flops:.0f} FLOP"


def _together(layers: Sequence[Layer]) -> Layer:
    sums = {
        name: sum(getattr(layer, name) for layer in layers)
        for name in ("parameters", "flops", "kept", "moved", "forward", "backward", "gradients")
    }
    return Layer(name="", kind="", **sums)


def _row(costs: Costs, layer: Layer, name: str) -> list[str]:
    sheet = costs.sheet
    return [
        name,
        f"{layer.parameters:,}" if layer.parameters else "–",
        flops_in_words(layer.flops) if layer.flops else "–",
        bytes_in_words(layer.kept) if layer.kept else "–",
        seconds_in_words(layer.seconds),
        share_in_words(sheet.share_of_peak(layer)) if layer.flops else "–",
        bytes_in_words(layer.gradients) if layer.gradients else "–",
        seconds_in_words(costs.wire_of(layer)) if layer.gradients else "–",
        seconds_in_words(sheet.update_of(layer)) if layer.gradients else "–",
    ]
