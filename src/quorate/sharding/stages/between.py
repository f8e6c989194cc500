"""Messages between stages: activations forward, and their gradients backward."""

from __future__ import annotations

from torch import Tensor

from quorate.core.contracts import Message, Wire
from quorate.sharding.stages.layout import Layout
from quorate.sharding.stages.run import Run
from quorate.sharding.traffic import Traffic


class Between:
    """The workers of one pipeline, as one of them sees them; `way` is "f" (forward) or "b" (backward)."""

    def __init__(self, layout: Layout, wire: Wire, traffic: Traffic) -> None:
        self._layout, self._wire, self._traffic = layout, wire, traffic

    def give(self, run: Run, way: str, transfer: int, number: int, stage: int, x: Tensor | None) -> None:
        """Send another stage a tensor, or (backward) nothing, where it has no gradient."""
        to = self._layout.owner(stage)
        if to == self._wire.rank:
            run.handed[way, transfer, number] = x
            return
        learns = run.learns and x is not None and x.requires_grad
        tensors = () if x is None else (x.detach().cpu().contiguous(),)
        run.sends.append(self._wire.send(Message(tensors, {"learns": learns}), to, f"{way}{transfer}.{number}"))

    def take(self, run: Run, way: str, transfer: int, number: int, stage: int) -> Tensor | None:
        """Receive a tensor from another stage; it requires gradients where it does there."""
        source = self._layout.owner(stage)
        if source == self._wire.rank:
            x = run.handed.pop((way, transfer, number))
            return None if x is None else x.detach().requires_grad_(x.requires_grad and way == "f")
        work = self._wire.receive(source, f"{way}{transfer}.{number}")
        _, message = self._traffic.wait_along(work, self._wire.clock)
        if not message.tensors:
            return None
        x = message.tensors[0]
        return x.requires_grad_() if message.header["learns"] and way == "f" else x

    def settle(self, run: Run) -> None:
        """Wait until the sends have completed."""
        for work in run.sends:
            self._traffic.wait_along(work, self._wire.clock)
        run.sends.clear()
