"""Copies in host memory of parameters that are on a device, on which an optimizer makes its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from quorate.core.local_tensor import as_piece_of, local
from quorate.sharding.bits import digest_of
from quorate.sharding.boundary import Boundary, HostMemory

MASTER = "master"
"""The name under which the optimizer keeps the numbers of a parameter of a small dtype, in float32."""
_SMALL = (torch.bfloat16, torch.float16)


@dataclass
class _Held:
    """The copy of one parameter, and its buffers."""

    copy: Parameter
    """On the host."""
    shown: Tensor | None = None
    """The digest of the parameter after the last step."""
    gradient: Tensor | None = None
    passing: Tensor | None = None
    """A buffer of the parameter's dtype, where the copy has another one."""


class HostCopies:
    """Copies of one optimizer's parameters, and of their gradients."""

    def __init__(self, optimizer: Optimizer, boundary: Boundary, memory: HostMemory) -> None:
        self._optimizer, self._boundary, self._memory = optimizer, boundary, memory
        self._held: dict[Parameter, _Held] = {}

    def __getitem__(self, p: Parameter) -> Parameter:
        return self._held[p].copy

    def forget_shown(self) -> None:
        """Compare each parameter with its copy before the next step, number by number."""
        for held in self._held.values():
            held.shown = None

    def refresh(self, stepped: Sequence[Parameter]) -> None:
        """Update the copies of parameters that were written since the last step."""
        written = [p for p, is_new in zip(stepped, self.are_written(stepped), strict=True) if is_new]
        received = {}
        for p in written:
            here = local(p.detach())
            received[p] = torch.empty(here.shape, dtype=here.dtype, pin_memory=here.device.type == "cuda", device="cpu")
            self._boundary.to_host(here, received[p])
        self._boundary.wait([local(p) for p in written])
        for p, numbers in received.items():
            self._write_copy(p, numbers)
            self._held[p].shown = digest_of(local(p))

    def are_written(self, parameters: Sequence[Parameter]) -> list[bool]:
        """Return for each parameter whether it was written since the last step, or there was no step."""
        shown = [p for p in parameters if p in self._held and self._held[p].shown is not None]
        looks = [torch.ne(digest_of(local(p)), _shown(self._held[p])).any() for p in shown]
        written = dict(zip(shown, torch.stack(looks).tolist(), strict=True)) if looks else {}
        return [written.get(p, True) for p in parameters]

    def _write_copy(self, p: Parameter, numbers: Tensor) -> None:
        """Write `numbers` to the copy; a copy of a small dtype keeps its master numbers that round to them."""
        wide = torch.float32 if numbers.dtype in _SMALL else numbers.dtype
        state = self._optimizer.state
        with torch.no_grad():
            held = self._held.get(p)
            kept = state[p].get(MASTER) if wide != numbers.dtype and p in state else None
            there = kept if kept is not None else held.copy if held is not None else None
            new = numbers.to(wide)
            if there is None or local(there).shape != new.shape:
                there = as_piece_of(p, self._memory.empty(new.shape, wide))
            elif wide != numbers.dtype:
                old = self._memory.kept(local(there).detach(), wide)
                there, new = as_piece_of(p, old), torch.where(old.to(numbers.dtype) == numbers, old, new)
            local(there).detach().copy_(new)
        if held is None or local(held.copy).data_ptr() != local(there).data_ptr():
            self._held[p] = held = _Held(Parameter(there.detach()))
        if wide != numbers.dtype:
            held.passing = numbers
            state[p][MASTER] = there.detach()

    def take_gradient(self, p: Parameter) -> None:
        """Copy the gradient of `p` to the host; it is complete when the boundary has been waited for."""
        held, grad = self._held[p], local(_gradient_of(p))
        if grad.layout != torch.strided:
            held.gradient = grad.to("cpu", copy=True)
            self._boundary.to_host_bytes += grad.coalesce().values().nbytes + grad.coalesce().indices().nbytes
            return
        there = held.gradient
        if there is None or there.shape != grad.shape or there.dtype != grad.dtype:
            there = torch.empty(grad.shape, dtype=grad.dtype, pin_memory=grad.device.type == "cuda", device="cpu")
        held.gradient = there
        self._boundary.to_host(grad, there)

    def give_gradient(self, p: Parameter) -> None:
        """Give the copy of `p` its gradient, in the copy's dtype."""
        held = self._held[p]
        assert held.gradient is not None
        held.copy.grad = as_piece_of(held.copy, held.gradient.to(local(held.copy).dtype))

    def settle(self, p: Parameter, kept: dict[str, Any]) -> None:
        """Move the optimizer's state of `p` to memory of the host, in the precision of its copy."""
        copy = local(self._held[p].copy)
        for key, x in kept.items():
            if not isinstance(x, Tensor):
                continue
            here, is_like = local(x), local(x).shape == copy.shape
            wide = copy.dtype if is_like and here.dtype in _SMALL else here.dtype
            settled = self._memory.kept(here, wide) if is_like else here.cpu()
            if settled is not here:
                kept[key] = as_piece_of(p, settled) if is_like else settled

    def numbers_of(self, p: Parameter) -> Tensor:
        """Return the numbers of the copy, in the dtype of the parameter."""
        held = self._held[p]
        numbers = local(held.copy).detach()
        return numbers if held.passing is None else held.passing.copy_(numbers)

    def show(self, parameters: Sequence[Parameter]) -> None:
        """Write the copies back to the parameters on the device."""
        for p in parameters:
            self._boundary.to_device(self.numbers_of(p), local(p.detach()))
        self._boundary.wait([local(p) for p in parameters])
        for p in parameters:
            self._held[p].shown = digest_of(local(p))


def _gradient_of(p: Parameter) -> Tensor:
    assert p.grad is not None
    return p.grad.detach()


def _shown(held: _Held) -> Tensor:
    assert held.shown is not None
    return held.shown
