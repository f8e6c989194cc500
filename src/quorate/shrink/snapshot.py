"""A model and its optimizer as they are, to be put back if making the model smaller was too much."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, RNNBase
from torch.optim import Optimizer

from quorate.replica.derived import Derived
from quorate.replica.masks import masks_of
from quorate.replica.optimizer_state import inner_optimizers
from quorate.replica.worker_momentum import WorkerMomentum


class Snapshot:
    """The forms, numbers and masks of a model, and the groups and state of its optimizer.

    Cost: a copy of the parameters, the buffers and the optimizer's state.
    """

    def __init__(self, model: Module, optimizer: Optimizer, momentum: WorkerMomentum | None) -> None:
        self._optimizer, self._momentum = optimizer, momentum
        self._forms = [
            (module, type(module), dict(module._parameters), dict(module._buffers)) for module in model.modules()
        ]
        self._numbers = [(x, x.detach().clone()) for x in (*model.parameters(), *model.buffers())]
        self._optimizers = [
            (
                each,
                [(group, list(group["params"]), copy.copy(group.get("param_names"))) for group in each.param_groups],
                {p: _copied(state) for p, state in each.state.items()},
            )
            for each in (optimizer, *inner_optimizers(optimizer).values())
        ]
        self._masks = dict(masks_of(optimizer).by_tensor)
        self._own = {} if momentum is None else {p: copy.deepcopy(own) for p, own in momentum.own.items()}

    def restore(self) -> None:
        """Put everything back, in place; the parameters are the same objects as then."""
        for module, kind, parameters, buffers in self._forms:
            if type(module) is not kind:
                module.__class__ = kind
            module._parameters.clear()
            module._parameters.update(parameters)
            module._buffers.clear()
            module._buffers.update(buffers)
            if isinstance(module, RNNBase):
                is_plain = not isinstance(module, Derived)
                module._flat_weights = [parameters[name] for name in module._flat_weights_names if is_plain]
        with torch.no_grad():
            for x, numbers in self._numbers:
                x.copy_(numbers)
        for optimizer, groups, states in self._optimizers:
            for group, members, names in groups:
                group["params"][:] = members
                if names is not None:
                    group["param_names"] = list(names)
            optimizer.state.clear()
            optimizer.state.update({p: _copied(state) for p, state in states.items()})
        if self._momentum is not None:
            self._momentum.own.clear()
            self._momentum.own.update(self._own)
        masks_of(self._optimizer).replace(self._masks)


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: x.clone() if isinstance(x, Tensor) else copy.copy(x) for name, x in state.items()}
