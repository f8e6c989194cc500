"""LARS: SGD with momentum whose rate is scaled layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from quorate.core.local_tensor import local
from quorate.optim.by_layers import ByLayers, at_least, dense_gradient, is_adapted, lars_ratio, without


class LARS(ByLayers):
    """Layer-wise adaptive rate scaling: You, Gitman, Ginsburg 2017, arXiv 1708.03888, Algorithm 1.

    For each layer with weights w and gradient g, at rate gamma:

        ratio = coefficient |w| / (|g| + weight_decay |w| + eps)       1 where |w| or |g| is 0
        v <- momentum v + gamma ratio (g + weight_decay w)             w <- w - v

    Parameters of one dimension (biases, norms), and those that `exclude` names, take a plain step of SGD with momentum,
    without weight decay. Norms are float32, and of full parameters even where these lie in pieces.

    In a group, `share` is the part of a step to make, for a round of some of the workers. The velocity decays and grows
    by that part of a step, and the weights move by it.

    Args:
        params: As for torch's optimizers; `model.named_parameters()` if `exclude` has patterns.
        lr: gamma. Linear scaling applies to it.
        momentum: The factor of the velocity in each step.
        weight_decay: The factor of the weights in the update.
        coefficient: The trust coefficient, which multiplies the ratio of norms.
        eps: A number added to the divisor of the ratio.
        exclude: Patterns of names of parameters that take a plain step of SGD with momentum.
        momentum_correction: Whether the velocity holds no rate: v <- momentum v + ratio (g + weight_decay w),
            w <- w - gamma v. This is the same for a constant gamma, and right when it changes (Goyal et al. 2017, arXiv
            1706.02677, section 3). False: the form of the paper.

    Raises:
        ConfigurationError: A number is out of range, a gradient is sparse, or a pattern matches nothing.

    Cost beyond SGD: two norms of each layer; memory: a number for each parameter.

    Example:
        >>> optimizer = quorate.optim.LARS(model.parameters(), lr=1.0, weight_decay=1e-4)
        >>> optimizer = quorate.distribute(optimizer, model)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        coefficient: float = 1e-3,
        eps: float = 0.0,
        exclude: Sequence[str] = (),
        momentum_correction: bool = True,
    ) -> None:
        at_least("lr", float(lr), 0.0, "LARS")
        at_least("momentum", momentum, 0.0, "LARS", below=1.0)
        for name, value in {"weight_decay": weight_decay, "coefficient": coefficient, "eps": eps}.items():
            at_least(name, value, 0.0, "LARS")
        defaults: dict[str, Any] = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "coefficient": coefficient,
        }
        defaults |= {"eps": eps, "momentum_correction": momentum_correction, "adapts": None, "share": 1.0}
        super().__init__(without(params, exclude, "LARS"), defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step; return the loss of `closure`, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        layers = self.adapted()
        norms = self.norms(
            [*((p, p) for p in layers), *((p, None if p.grad is None else dense_gradient(p, "LARS")) for p in layers)]
        )
        norms_of = dict(zip(layers, zip(norms[: len(layers)], norms[len(layers) :], strict=True), strict=True))
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._step_of(p, group, norms_of.get(p) if is_adapted(p, group) else None)
        return loss

    def _step_of(self, p: Tensor, group: dict[str, Any], norms: tuple[Tensor, Tensor] | None) -> None:
        rate, beta, share = float(group["lr"]), group["momentum"], group["share"]
        inside = not group["momentum_correction"]
        w, update = local(p), dense_gradient(p, "LARS")
        if norms is not None:
            decay = group["weight_decay"]
            ratio = lars_ratio(*norms, coefficient=group["coefficient"], weight_decay=decay, eps=group["eps"])
            update = update.add(w, alpha=decay).mul_(ratio)
        if beta:
            state = self.state[p]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(p)
            velocity, fades = local(state["momentum_buffer"]), beta**share
            taken = 1.0 if share == 1.0 else (1 - fades) / (1 - beta)
            update = velocity.mul_(fades).add_(update, alpha=taken * rate if inside else taken)
            rate = 1.0 if inside else rate
        w.sub_(update, alpha=rate * share)
