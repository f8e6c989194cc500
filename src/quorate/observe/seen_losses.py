"""The losses of backward passes, as the script means them: read without waiting for a GPU, and unscaled.

A loss on a GPU is copied into pinned host memory behind the GPU's current work. No thread waits for the copy; the
record of the step is written when it is complete. `GradScaler.scale` multiplies a loss with its scale; that product is
the last operation of the graph, which has kept the scale, so dividing by it returns the loss.

`OuterLosses` reports that the loss rises above that of the beginning, while outer steps reach beyond the workers'
movement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quorate.core.telling import tell
from quorate.observe.step_observer import Phase, StepObserver
from quorate.records.records import LateNumber

Copy = tuple[Tensor, torch.cuda.Event]
"""One number in host memory, and the event after which it is valid."""


@dataclass(frozen=True)
class CopiedLosses:
    """The mean of losses that are being copied from a GPU: a `LateNumber`."""

    copies: list[Copy]

    def is_there(self) -> bool:
        return all(event.query() for _, event in self.copies)

    def value(self) -> float:
        for _, event in self.copies:
            event.synchronize()
        return sum(float(host) for host, _ in self.copies) / len(self.copies)


@dataclass
class SeenLosses:
    """The losses of one step: for each the argument of backward, and the loss before a GradScaler, if any."""

    _on_cpu: list[tuple[float, float | None]] = field(default_factory=list)
    _copied: list[tuple[Copy, Copy | None]] = field(default_factory=list)

    def add(self, losses: Any) -> None:
        """Add an argument of backward: one number on the CPU or a CUDA device counts, anything else does not."""
        loss = losses[0] if isinstance(losses, list | tuple) and len(losses) == 1 else losses
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            return
        if loss.device.type == "cpu":
            scale, value = scale_of(loss), loss.item()
            factor = 0.0 if scale is None else float(scale)
            self._on_cpu.append((value, value / factor if factor else None))  # a script may multiply by 0
        elif loss.device.type == "cuda":
            own, scale = loss.detach().reshape(()), scale_of(loss)
            self._copied.append((copied(own), None if scale is None else copied(own / scale)))

    @property
    def known(self) -> float | None:
        """The mean so far; None on a GPU."""
        return None if self._copied or not self._on_cpu else sum(x for x, _ in self._on_cpu) / len(self._on_cpu)

    def of_script(self, *, is_scaled: bool) -> tuple[float | None, LateNumber | None]:
        """Return the mean before scaling, or its future value; None and None where it is unknown."""
        place = 1 if is_scaled else 0
        if self._copied:
            copies = [copy for pair in self._copied if (copy := pair[place]) is not None]
            return None, None if self._on_cpu or len(copies) < len(self._copied) else CopiedLosses(copies)
        losses = [x for pair in self._on_cpu if (x := pair[place]) is not None]
        return (sum(losses) / len(losses) if losses and len(losses) == len(self._on_cpu) else None), None


def scale_of(loss: Tensor) -> Tensor | None:
    """Return the factor of the last operation, if that is a product with one number that is no parameter."""
    last = loss.grad_fn
    if last is None or last.name() != "MulBackward0":
        return None
    scale = getattr(last, "_saved_other", None)
    is_scale = isinstance(scale, Tensor) and scale.numel() == 1 and not scale.requires_grad
    return scale.detach().reshape(()) if is_scale and isinstance(scale, Tensor) else None


def copied(number: Tensor) -> Copy:
    """Start a copy to host memory."""
    host = torch.empty((), dtype=number.dtype, pin_memory=True)
    host.copy_(number, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(number.device))
    return host, event


PERIODS = 3
"""Periods in a row whose loss is above that of the first one before it is reported."""


class OuterLosses(StepObserver):
    """Compares the mean losses of the periods between outer steps, of one worker and one optimizer.

    Losses on a GPU are copied to the host in their steps. An outer step, which is measured, has waited for the copies.
    A period whose losses are not there counts for nothing. Cost: one loss a step.
    """

    phase = Phase.RECORD

    def __init__(self, optimizer: str, steps: Callable[[], int], *, is_scaled: Callable[[], bool]) -> None:
        """`steps` returns the number of steps so far, `is_scaled` whether a GradScaler scales the losses."""
        self.optimizer, self._steps, self._is_scaled = optimizer, steps, is_scaled
        self._losses = SeenLosses()
        self._first: float | None = None
        self._risen = 0
        self._is_said = False

    def forward_ended(self, losses: Any) -> None:
        if not self._is_said:
            self._losses.add(losses)

    def outer_step(self, reach: float) -> None:
        """End a period: its outer step has moved `reach` times the mean movement of the workers."""
        if self._is_said:
            return
        loss, late = self._losses.of_script(is_scaled=self._is_scaled())
        self._losses = SeenLosses()
        if late is not None:
            loss = late.value() if late.is_there() else None
        if loss is None:
            return
        if self._first is None:
            self._first = loss
            return
        has_risen = not loss <= self._first and reach > 1
        self._risen = self._risen + 1 if has_risen else 0
        if self._risen == PERIODS:
            self._is_said = True
            tell(
                f"quorate: the loss has risen to {loss:.4g} at step {self._steps()}, above the {self._first:.4g} of "
                f"the first period. The last outer step moved {reach:.1f} times the mean movement of the workers. "
                'Leave outer_rate and outer_momentum unset, lower them, or set outer_gain="measured"\n'
            )
