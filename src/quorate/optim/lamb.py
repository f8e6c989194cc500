"""LAMB: Adam whose step is scaled layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from quorate.core.device_copies import values_of
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.optim.by_layers import ByLayers, at_least, dense_gradient, is_adapted, lamb_ratio, without


class LAMB(ByLayers):
    """Layer-wise adaptive moments for batch training: You et al. 2020, arXiv 1904.00962, Algorithm 2.

    For each layer with weights w and gradient g, in step t, at rate eta:

        m <- beta1 m + (1 - beta1) g,  v <- beta2 v + (1 - beta2) g^2,  m' = m / (1 - beta1^t),  v' = v / (1 - beta2^t)
        u = m' / (sqrt(v') + eps) + weight_decay w
        w <- w - eta phi(|w|) / |u| u                                  the ratio is 1 where |w| or |u| is 0

    phi is the identity, or limits |w| to `bounds` (low, high). Parameters of one dimension (biases, norms), and those
    that `exclude` names, take a plain step of Adam, without weight decay. Norms are float32, and of full parameters
    even where these lie in pieces.

    Args:
        params: As for torch's optimizers; `model.named_parameters()` if `exclude` has patterns.
        lr: eta. Scaling by the square root of the batch applies to it.
        betas: beta1 and beta2.
        eps: A number added to the root of v'.
        weight_decay: The factor of the weights in the update.
        bounds: The lowest and the highest |w| in phi; None: phi is the identity.
        exclude: Patterns of names of parameters that take a plain step of Adam.

    Raises:
        ConfigurationError: A number is out of range, a gradient is sparse, or a pattern matches nothing.

    Cost beyond Adam: two norms of each layer, and memory for the update of all layers during a step.

    Example:
        >>> optimizer = quorate.optim.LAMB(model.named_parameters(), lr=0.01)
        >>> optimizer = quorate.distribute(optimizer, model)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        bounds: tuple[float, float] | None = None,
        exclude: Sequence[str] = (),
    ) -> None:
        at_least("lr", float(lr), 0.0, "LAMB")
        for beta in betas:
            at_least("each of betas", beta, 0.0, "LAMB", below=1.0)
        at_least("eps", eps, 0.0, "LAMB")
        at_least("weight_decay", weight_decay, 0.0, "LAMB")
        if bounds is not None and not 0 <= bounds[0] < bounds[1]:
            raise ConfigurationError(f"LAMB: bounds are two numbers, the low one from 0 on, not {bounds!r}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "bounds": bounds}
        super().__init__(without(params, exclude, "LAMB"), {**defaults, "adapts": None})

    held: Mapping[Tensor, float] | None = None
    """The ratios of a step by agreed momenta, in place of those of norms."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step; return the loss of `closure`, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        updates = {
            p: self._update_of(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None
        }
        layers = self.adapted() if self.held is None else []
        norms = self.norms([*((p, p) for p in layers), *((p, updates.get(p)) for p in layers)])
        norms_of = dict(zip(layers, zip(norms[: len(layers)], norms[len(layers) :], strict=True), strict=True))
        for group in self.param_groups:
            for p in group["params"]:
                if p in updates:
                    update = updates[p]
                    if self.held is not None:
                        update.mul_(self.held[p])
                    elif is_adapted(p, group):
                        update.mul_(lamb_ratio(*norms_of[p], bounds=group["bounds"]))
                    local(p).sub_(update, alpha=float(group["lr"]))
        return loss

    @torch.no_grad()
    def trust_ratios(self) -> dict[Tensor, float]:
        """Return phi(|w|) / |u| for each adapted parameter that has moments, with u of these moments.

        Cost: a pass over the parameters and their moments.
        """
        layers = [(p, group) for group in self.param_groups for p in group["params"] if is_adapted(p, group)]
        layers = [(p, group) for p, group in layers if self.state.get(p)]
        pairs = [pair for p, group in layers for pair in ((p, p), (p, self._by_moments(p, group)))]
        norms = self.norms(pairs)
        ratios = [
            lamb_ratio(weight, update, bounds=group["bounds"])
            for (_, group), weight, update in zip(layers, norms[::2], norms[1::2], strict=True)
        ]
        return dict(zip((p for p, _ in layers), values_of(ratios), strict=True))

    def _update_of(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        """Return the local part of u."""
        g, state = dense_gradient(p, "LAMB"), self.state[p]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        first, second = group["betas"]
        state["step"] += 1
        m, v = local(state["exp_avg"]), local(state["exp_avg_sq"])
        m.lerp_(g.to(m.dtype), 1 - first)
        v.mul_(second).addcmul_(g, g.conj(), value=1 - second)
        return self._by_moments(p, group)

    def _by_moments(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        """Return the local part of u, from the moments as they are."""
        state, (first, second) = self.state[p], group["betas"]
        m, v, count = local(state["exp_avg"]), local(state["exp_avg_sq"]), float(state["step"])
        update: Tensor = (m / (1 - first**count)).div_((v / (1 - second**count)).sqrt_().add_(group["eps"]))
        return update.add_(local(p), alpha=group["weight_decay"]) if is_adapted(p, group) else update
