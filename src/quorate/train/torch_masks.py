"""Masks of `torch.nn.utils.prune`: each worker makes its own, and they have to be equal."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, ranks_in_words
from quorate.core.masks import Mask
from quorate.wire.current import Place
from quorate.wire.survivors import surviving_replicas

_MASK, _ORIGINAL = "_mask", "_orig"


def check_torch_masks(model: Module, wire: Wire, place: Place) -> None:
    """Raise `ConfigurationError`, on every worker, if masks of torch's pruning differ; called in a pause of all.

    Cost: nothing without such masks; with them, a pass over each and 8 bytes of each per worker.
    """
    masks = torch_masks_in(model)
    if not masks:
        return
    own = torch.tensor([int(Mask(x).digest[:15], 16) for x in masks.values()])
    group = surviving_replicas(place)
    gathered = (wire.all_gather(own) if group is None else group.all_gather(own)).wait()
    for number, name in enumerate(masks):
        others = [rank for rank, digests in enumerate(gathered) if digests[number] != gathered[0][number]]
        if others:
            raise ConfigurationError(
                f"the mask {name} of torch.nn.utils.prune differs on {ranks_in_words(others)}: each worker has pruned "
                "its own replica, and replicas differed then. Use quorate.shrink.prune, or prune inside "
                "world.evaluate(), where replicas are equal"
            )


def torch_masks_in(model: Module) -> dict[str, Tensor]:
    """Return the masks of torch's pruning, by their names in the model."""
    masks: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        parameters = dict(module.named_parameters(recurse=False))
        for name, x in module.named_buffers(recurse=False):
            if name.endswith(_MASK) and name.removesuffix(_MASK) + _ORIGINAL in parameters:
                masks[f"{path}.{name}".lstrip(".")] = x
    return masks
