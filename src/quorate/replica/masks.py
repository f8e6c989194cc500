"""The masks of one optimizer's parameters: pruned numbers, their gradients and their moments stay zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from quorate.core.local_tensor import local
from quorate.core.masks import Mask

_MASKS = "_quorate_masks"


class Masks:
    """The masks of one optimizer.

    Hooks set the gradient of pruned numbers to zero as it is accumulated, and the numbers after each step. So weight
    decay and momentum leave them at zero, and norms that gradients are clipped by are of the kept numbers.

    Cost: two passes over each masked tensor in a step.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.by_tensor: dict[Tensor, Mask] = {}
        """The masks of the parameters that have one."""
        self.pruned_at = -1
        """The update of the newest pruning by a schedule; -1 before the first."""
        self._hooks: list[RemovableHandle] = []

    def replace(self, masks: Mapping[Tensor, Mask]) -> None:
        """Have exactly these masks from now on; numbers, gradients and optimizer state that they prune become zero."""
        for hook in self._hooks:
            hook.remove()
        self.by_tensor = dict(masks)
        self._hooks = [p.register_post_accumulate_grad_hook(self._gradient_is_ready) for p in masks if p.requires_grad]
        if masks:
            self._hooks.append(self._optimizer.register_step_post_hook(lambda *_: self.apply()))
        self.apply()
        for p, mask in masks.items():
            if p.grad is not None:
                mask.apply_(p.grad)
            for x in _tensors_like(p, self._optimizer.state.get(p, {})):
                mask.apply_(x)

    @property
    def is_pruned(self) -> bool:
        """Whether there has been a pruning."""
        return bool(self.by_tensor) or self.pruned_at >= 0

    def apply(self) -> None:
        """Set pruned numbers to zero."""
        for p, mask in self.by_tensor.items():
            mask.apply_(local(p))

    def _gradient_is_ready(self, p: Tensor) -> None:
        if p.grad is not None:
            self.by_tensor[p].apply_(p.grad)

    def kept(self) -> dict[int, Tensor]:
        """Return the places of the kept numbers by the number of the parameter, for a checkpoint."""
        places = {p: number for number, p in enumerate(_parameters(self._optimizer))}
        return {places[p]: mask.places.cpu() for p, mask in self.by_tensor.items()}

    def restore(self, kept: Mapping[int, Tensor]) -> None:
        """Replace the masks by those of `kept`."""
        parameters, masks = _parameters(self._optimizer), dict[Tensor, Mask]()
        for number, places in kept.items():
            p = parameters[number]
            flags = torch.zeros(p.numel(), dtype=torch.bool, device=p.device)
            flags[places.to(p.device)] = True
            masks[p] = Mask(flags.view(p.shape))
        self.replace(masks)


def masks_of(optimizer: Optimizer) -> Masks:
    """Return the masks of an optimizer, which are empty before it is pruned."""
    own: dict[str, Any] = optimizer.__dict__
    if _MASKS not in own:
        own[_MASKS] = Masks(optimizer)
    masks: Masks = own[_MASKS]
    return masks


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _tensors_like(p: Tensor, state: Mapping[str, Any]) -> list[Tensor]:
    return [x for x in state.values() if isinstance(x, Tensor) and x.shape == p.shape]
