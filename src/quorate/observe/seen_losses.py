"""The losses of backward passes, as the script means them: read without waiting for a GPU, and unscaled.

A loss on a GPU is copied into pinned host memory behind the GPU's current work. No thread waits for the copy; the
record of the step is written when it is complete. `GradScaler.scale` multiplies a loss with its scale; that product is
the last operation of the graph, which has kept the scale, so dividing by it returns the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

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
