"""One step of the user's own optimizer class, also under a GradScaler."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from quorate.core.errors import ConfigurationError


def plain_step(
    optimizer: Optimizer, plain: type[Optimizer], closure: Callable[[], Any] | None, *, is_scaled: bool = True
) -> Any:
    """`plain.step`, as it would run without us; not `is_scaled`: on gradients that no GradScaler has scaled.

    A GradScaler hands `grad_scale` and `found_inf` to optimizers that support it, and a distributed optimizer always
    does, so that `step` is called on every worker. Where the plain class does not, they are hidden from it: the
    gradients are unscaled here, and the step is left out if one of them is not finite.
    """
    own: dict[str, Any] = optimizer.__dict__
    if "found_inf" not in own or (is_scaled and own.get("_step_supports_amp_scaling", False)):
        return _call(optimizer, plain, closure)
    hidden: dict[str, Any] = {name: own.pop(name) for name in ("grad_scale", "found_inf") if name in own}
    try:
        scale, found_inf = hidden.get("grad_scale"), hidden["found_inf"]
        if is_scaled and scale is not None:
            _unscale(optimizer, scale)
        if is_scaled and float(found_inf):
            return None
        return _call(optimizer, plain, closure)
    finally:
        own.update(hidden)


def _call(optimizer: Optimizer, plain: type[Optimizer], closure: Callable[[], Any] | None) -> Any:
    step: Any = plain.step
    return step(optimizer) if closure is None else step(optimizer, closure)


def step_unseen(optimizer: Optimizer) -> None:
    """`optimizer.step()` of one that is not the user's: no hook sees it, torch's global ones included."""
    step: Any = type(optimizer).step
    plain = step.__wrapped__ if getattr(step, "hooked", False) else step  # hooks are in torch's wrapper
    plain(optimizer)


def _unscale(optimizer: Optimizer, scale: torch.Tensor) -> None:
    """Divide every gradient by `scale`, in the arithmetic of `GradScaler.unscale_`."""
    kinds: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                kinds.setdefault((p.grad.device, p.grad.dtype), []).append(p.grad)
    inverse = scale.double().reciprocal().float()
    for (device, _), grads in kinds.items():
        torch._amp_foreach_non_finite_check_and_unscale_(grads, torch.zeros((), device=device), inverse.to(device))


def agreed_closure(closure: Callable[[], Any], mean_of: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Any]:
    """`closure` with its loss averaged over all workers, so that all take the same decisions from it."""

    def agreed() -> Any:
        with torch.enable_grad():
            loss = closure()
        mean = mean_of(torch.as_tensor(loss).detach().to(torch.float64).reshape(1))
        return mean[0].to(loss.dtype) if isinstance(loss, torch.Tensor) else float(mean)

    return agreed


def check_closure(plain: type[Optimizer], strategy: str, *, can_agree: bool) -> None:
    """Raise `ConfigurationError` for a class that cannot step without a closure, unless all can agree inside it."""
    closure = inspect.signature(plain.step).parameters.get("closure")
    if can_agree or closure is None or closure.default is not inspect.Parameter.empty:
        return
    raise ConfigurationError(
        f"{plain.__name__} asks for the loss several times a step, in a closure, and {strategy} for one gradient a "
        "step; distribute it with all-reduce"
    )
