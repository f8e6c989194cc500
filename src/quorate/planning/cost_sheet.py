"""The cost sheet of a training step: what each layer and each part of a step takes, and what may be cut. Pure.

A step of a worker alone is compute (layers, and what is outside of them), the wait for data, and the update. A layer
can be no faster than its operations at the peak, and than its bytes at the memory's bandwidth. Each byte of its input,
output and parameters is moved three times: once forward, and twice backward. An update reads and writes parameters,
gradients and the optimizer's state: (3 + 2 s) times the bytes of the parameters, for s bytes of state for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

MOVES = 3
"""Times that bytes of a layer are moved in a step."""
_LEAST_GAIN = 0.01
"""The smallest share of a step that is worth a sentence."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One module with what it computes itself, in a step. Bytes and seconds."""

    name: str
    kind: str
    parameters: int
    flops: float
    """Operations of both passes."""
    kept: int
    """Activations that it keeps for the backward pass."""
    moved: int
    """Bytes of input and output; 0 for a module that contains others."""
    forward: float
    backward: float
    gradients: int

    @property
    def seconds(self) -> float:
        """Seconds of both passes."""
        return self.forward + self.backward

    def least(self, peak: float, bandwidth: float) -> float:
        """Return the seconds that it takes at least, at `peak` operations and `bandwidth` bytes per second."""
        return max(self.flops / peak, MOVES * (self.moved + self.gradients) / bandwidth)


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """The steps of one worker alone."""

    layers: Sequence[Layer]
    seconds: float
    """A usual step, measured without looking at layers."""
    data: float
    """Seconds of waiting for data in it."""
    update: float
    peak: float
    """Operations per second of a product of matrices on this machine."""
    bandwidth: float
    """Bytes per second of its memory."""
    state: int
    """Bytes of the optimizer's state."""
    steps: Sequence[float]
    """Seconds of each measured step."""

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any]) -> Sheet:
        """Return the sheet of the answer of `launch.warm.costing`."""
        cost = answer["cost"]
        return cls(
            layers=[Layer(**layer) for layer in cost["layers"]],
            state=sum(size["kept_like"] + size["kept_apart"] for size in answer["memory"]["sizes"]),
            **{name: cost[name] for name in ("seconds", "data", "update", "peak", "bandwidth", "steps")},
        )

    @cached_property
    def in_layers(self) -> float:
        """Seconds of all layers."""
        return sum(layer.seconds for layer in self.layers)

    @property
    def mean(self) -> float:
        """Seconds of a step on average over all steps."""
        return sum(self.steps) / len(self.steps)

    @property
    def outside(self) -> float:
        """Seconds outside of layers, data and update: the loss, the optimizer's hooks, the script itself."""
        return max(0.0, self.seconds - self.in_layers - self.data - self.update)

    @property
    def total(self) -> float:
        """Seconds of all lines of the sheet."""
        return self.in_layers + self.outside + self.data + self.update

    @cached_property
    def gradients(self) -> int:
        """Bytes of all gradients."""
        return sum(layer.gradients for layer in self.layers)

    @property
    def backward_share(self) -> float:
        """The share of backward passes in the seconds of layers."""
        return sum(layer.backward for layer in self.layers) / self.in_layers if self.in_layers else 2 / 3

    def share_of_peak(self, layer: Layer) -> float:
        """Return the layer's operations per second over those of the peak."""
        return layer.flops / layer.seconds / self.peak if layer.seconds > 0 else 0.0

    def update_of(self, layer: Layer) -> float:
        """Return the layer's part of the update, by its bytes."""
        return self.update * layer.gradients / self.gradients if self.gradients else 0.0

    @property
    def least_update(self) -> float:
        """Seconds that an update takes at least."""
        return min(self.update, (MOVES * self.gradients + 2 * self.state) / self.bandwidth)

    def above_least(self, layer: Layer) -> float:
        """Return the seconds of a layer above its least; 0 for a module that contains others."""
        return max(0.0, layer.seconds - layer.least(self.peak, self.bandwidth)) if layer.moved else 0.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of one of many workers, on average; seconds by part."""

    workers: int
    compute: float
    wire: float
    """Transmission beyond the part that is hidden behind the backward pass."""
    wait: float
    """Waiting for slower workers."""
    data: float
    update: float

    @property
    def seconds(self) -> float:
        """Seconds of all parts."""
        return self.compute + self.wire + self.wait + self.data + self.update

    def as_json(self) -> dict[str, Any]:
        """Return it with its sum."""
        return asdict(self) | {"seconds": self.seconds}


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Something that may be cut, and the gain."""

    kind: str
    advice: str
    seconds: float
    """Predicted gain of a step, at most."""


def cuts(sheet: Sheet, step: Step, halved: Step, optimizer: str, script: str) -> list[Cut]:
    """Return the three cuts with the greatest gain; `halved` is `step` with half of the bytes on the wire."""
    slow = sorted(sheet.layers, key=sheet.above_least, reverse=True)
    named = ", ".join(f"{layer.name or layer.kind}" for layer in slow[:3] if sheet.above_least(layer) > 0)
    choices = [
        Cut(
            kind="data",
            advice=f"let more processes load data (quorate doctor --data {script} says how many)",
            seconds=step.data,
        ),
        Cut(kind="wire", advice='send gradients in 16 bits (compress="half")', seconds=step.seconds - halved.seconds),
        Cut(
            kind="wait",
            advice="do not wait for slower workers (quorate explain quorum says what that costs)",
            seconds=step.wait,
        ),
        Cut(
            kind="update",
            advice=f"let {optimizer} update all parameters at once (fused=True), at the memory's bandwidth",
            seconds=sheet.update - sheet.least_update,
        ),
        Cut(
            kind="layers",
            advice=f"bring layers nearer to the peak (larger batches, torch.compile), above all {named}",
            seconds=sum(map(sheet.above_least, sheet.layers)),
        ),
        Cut(
            kind="outside",
            advice="look at the script outside of layers: the loss, printing, .item(), copies of the batch",
            seconds=sheet.outside,
        ),
    ]
    worth = [cut for cut in choices if cut.seconds >= _LEAST_GAIN * step.seconds]
    return sorted(worth, key=lambda cut: -cut.seconds)[:3]
