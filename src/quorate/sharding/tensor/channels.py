"""Norms, and grouped convolutions, of which each worker has some channels, between layers that are cut by filters.

Parameters are pieces, as in other layers. Running statistics stay full tensors, equal on all workers, so that
`state_dict`, strategies and checkpoints have the same tensors as in one process: a worker calculates with its part of
them, and the parts are joined at the end of a call of the model in which some were updated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import GroupNorm, Module

from quorate.sharding.tensor.activations import Together
from quorate.sharding.tensor.plan import is_convolution


def narrow(module: Any, workers: int) -> None:
    """Set the number of channel groups of a module to that of its piece; the shapes it names are then those of the
    piece."""
    if isinstance(module, GroupNorm):
        module.num_groups, module.num_channels = module.num_groups // workers, module.num_channels // workers
    elif is_convolution(module):
        module.groups = module.groups // workers


class Statistics:
    """Running statistics by channel, of all norms of one model."""

    def __init__(self, together: Together) -> None:
        self._together = together
        self._renewed: dict[int, Tensor] = {}
        self.is_in_call = False
        """Whether a call of the model is in progress, at whose end they are joined."""

    def lend(self, module: Module, kept: list[tuple[Module, str, Any]]) -> None:
        """Give `module` its part of each buffer, to write to; append the full ones to `kept`, to be put back."""
        for key, whole in list(module._buffers.items()):
            if whole is not None and whole.dim():
                kept.append((module, key, whole))
                if module.training:  # backward does not read them, and does not mind what is joined later
                    self._renewed[id(whole)] = whole
                module._buffers[key] = self._part(whole.data if module.training else whole)

    def settle(self) -> None:
        """End a norm's pass: join the parts unless the model's pass does so later, as when activations are
        recalculated."""
        if not self.is_in_call:
            self.join()

    def join(self) -> None:
        """Send all workers the updated parts. Cost: (T - 1) / T of the numbers sent, in one message for each dtype."""
        renewed, self._renewed = list(self._renewed.values()), {}
        for dtype in dict.fromkeys(x.dtype for x in renewed):
            self._join([x for x in renewed if x.dtype == dtype])

    def _join(self, wholes: Sequence[Tensor]) -> None:
        together = self._together
        local_parts = torch.cat([self._part(x) for x in wholes])
        with torch.no_grad():
            for rank, theirs in enumerate(together.join(local_parts, 0).chunk(together.size)):
                for x, part in zip(wholes, theirs.split([len(x) // together.size for x in wholes]), strict=True):
                    x.chunk(together.size)[rank].copy_(part)

    def _part(self, whole: Tensor) -> Tensor:
        return whole.chunk(self._together.size)[self._together.rank]
