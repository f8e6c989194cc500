"""Norms, and convolutions in groups, of which each worker has some channels: between layers that are cut by filters.

Parameters are pieces as those of other layers are. Running statistics stay whole tensors, equal on all workers, so that
`state_dict`, strategies and checkpoints find what they find in one process: a worker calculates with its part of them,
and the parts are joined at the end of a call of the model in which some were renewed.
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
    """Let a module know that it has fewer groups of channels. Its names of shapes are those of the piece then."""
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
        """Of the model, at whose end they are joined."""

    def lend(self, module: Module, kept: list[tuple[Module, str, Any]]) -> None:
        """Give `module` its part of each, which it writes to; `kept` has the whole ones, to be put back."""
        for key, whole in list(module._buffers.items()):
            if whole is not None and whole.dim():
                kept.append((module, key, whole))
                if module.training:  # backward does not read them, and does not mind what is joined later
                    self._renewed[id(whole)] = whole
                module._buffers[key] = self._part(whole.data if module.training else whole)

    def settle(self) -> None:
        """The end of a norm's own pass: join where that of the model is not to come, as where activations are
        calculated again."""
        if not self.is_in_call:
            self.join()

    def join(self) -> None:
        """Let all workers have what each has renewed. Cost: (T - 1) / T of the numbers sent, in one message of each
        dtype."""
        renewed, self._renewed = list(self._renewed.values()), {}
        for dtype in dict.fromkeys(x.dtype for x in renewed):
            self._join([x for x in renewed if x.dtype == dtype])

    def _join(self, wholes: Sequence[Tensor]) -> None:
        together = self._together
        mine = torch.cat([self._part(x) for x in wholes])
        with torch.no_grad():
            for rank, theirs in enumerate(together.join(mine, 0).chunk(together.size)):
                for x, part in zip(wholes, theirs.split([len(x) // together.size for x in wholes]), strict=True):
                    x.chunk(together.size)[rank].copy_(part)

    def _part(self, whole: Tensor) -> Tensor:
        return whole.chunk(self._together.size)[self._together.rank]
