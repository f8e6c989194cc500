"""One step of the user's own optimizer class, also under a GradScaler: its gradient, options and parameters."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from quorate.core.autocast import with_autocast_of_script
from quorate.core.device_copies import widest
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import as_piece_of, exchange_numbers, numbers_in
from quorate.core.vectors import Flat, full_segments, mask_of

OWN_STEP = "_quorate_own_step"
"""The attribute of a distributed optimizer that holds this step."""


@dataclass(frozen=True)
class StepArguments:
    """The arguments of a script's call of `step`."""

    positional: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    closure: Callable[[], Any] | None = None

    def __bool__(self) -> bool:
        return bool(self.positional or self.named)


NO_ARGUMENTS = StepArguments()
_HOW_COMPUTED = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Options that choose the implementation of a step."""
Elsewhere = Callable[[Callable[[Optimizer], None]], None]
"""Makes the given step of an optimizer in another place than that of the parameters."""


_UNSCALES_BEFORE = ("lightning", "lightning_fabric", "pytorch_lightning")


def _scales_in_step(optimizer: Any) -> bool:
    reader = str(sys._getframe(1).f_globals.get("__name__", ""))
    return reader.partition(".")[0] not in _UNSCALES_BEFORE


scales_in_step = property(_scales_in_step)
"""Whether `step` takes the scale of a GradScaler, as torch's attribute says: True, so that all workers step.

Lightning reads False: else it neither unscales gradients before it clips them, nor lets them be clipped.
"""


def plain_step(
    optimizer: Optimizer,
    plain: type[Optimizer],
    closure: Callable[[], Any] | None,
    *,
    is_scaled: bool = True,
    is_seen: bool = True,
    elsewhere: Elsewhere | None = None,
    arguments: StepArguments = NO_ARGUMENTS,
) -> Any:
    """Call `plain.step`, or the step that the script has put on `optimizer`, as it would run without us.

    Not `is_scaled`: no GradScaler has scaled the gradients; not `is_seen`: no hook sees the step; `elsewhere` makes it
    in another place. It gets the `arguments` besides the closure.

    A GradScaler passes `grad_scale` and `found_inf` to optimizers that support it, and a distributed optimizer always
    does, so that `step` is called on every worker. Where the plain class does not, they are hidden from it: the
    gradients are unscaled here, and the step is left out if one of them is not finite.
    """
    own: dict[str, Any] = optimizer.__dict__
    if "found_inf" not in own or (is_scaled and own.get("_step_supports_amp_scaling", False)):
        return _call(optimizer, plain, closure, is_seen, elsewhere, arguments)
    hidden: dict[str, Any] = {name: own.pop(name) for name in ("grad_scale", "found_inf") if name in own}
    try:
        scale, found_inf = hidden.get("grad_scale"), hidden["found_inf"]
        if is_scaled and scale is not None:
            _unscale(optimizer, scale)
        if is_scaled and float(found_inf):
            return None
        return _call(optimizer, plain, closure, is_seen, elsewhere, arguments)
    finally:
        own.update(hidden)


def _call(
    optimizer: Optimizer,
    plain: type[Optimizer],
    closure: Callable[[], Any] | None,
    is_seen: bool,
    elsewhere: Elsewhere | None,
    arguments: StepArguments,
) -> Any:
    if elsewhere is not None:
        return _call_elsewhere(optimizer, plain, closure, is_seen, elsewhere)
    own: Any = optimizer.__dict__.get(OWN_STEP)
    if not is_seen and own is None:
        return with_autocast_of_script(step_unseen, optimizer, plain)
    step: Any = partial(plain.step, optimizer) if own is None else own
    if closure is None and (not arguments.positional or not takes_closure(plain)):
        return with_autocast_of_script(step, *arguments.positional, **arguments.named)
    return with_autocast_of_script(step, closure, *arguments.positional, **arguments.named)


def _call_elsewhere(
    optimizer: Optimizer,
    plain: type[Optimizer],
    closure: Callable[[], Any] | None,
    is_seen: bool,
    elsewhere: Elsewhere,
) -> Any:
    """Make the step elsewhere. Hooks see these parameters; the closure is called once, before it."""
    loss: Any = None

    def does() -> None:
        nonlocal loss
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        elsewhere(lambda like: step_unseen(like, plain))

    if is_seen:
        seen_as_a_step(optimizer, does)
    else:
        does()
    return loss


def step_unseen(optimizer: Optimizer, plain: type[Optimizer] | None = None) -> None:
    """Call `step` of an optimizer's class (or of `plain`) without any hook, torch's global ones included."""
    step: Any = (type(optimizer) if plain is None else plain).step
    unseen = step.__wrapped__ if getattr(step, "hooked", False) else step  # hooks are in torch's wrapper
    unseen(optimizer)


def seen_as_a_step(optimizer: Optimizer, does: Callable[[], None]) -> None:
    """Call `does` as one step of `optimizer` with its hooks."""
    Optimizer.profile_hook_step(lambda _: does())(optimizer)


def _unscale(optimizer: Optimizer, scale: torch.Tensor) -> None:
    """Divide every gradient by `scale`, in the arithmetic of `GradScaler.unscale_`."""
    kinds: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                kinds.setdefault((p.grad.device, p.grad.dtype), []).append(numbers_in(p.grad))
    inverse = scale.to(widest(scale.device)).reciprocal().float()
    for (device, _), grads in kinds.items():
        torch._amp_foreach_non_finite_check_and_unscale_(grads, torch.zeros((), device=device), inverse.to(device))


class Agreeing(Protocol):
    """See `means.means.MeansOfAll`."""

    some_away: bool
    """Whether a worker had paused or ended when the newest mean was formed."""

    def of_number(self, value: Tensor) -> Tensor:
        """Return the mean of the `value` of every worker; all call it at the same place."""


def agreed_closure(
    closure: Callable[[], Any],
    means: Callable[[], Agreeing],
    plain: type[Optimizer],
    weight: Callable[[], float] | None = None,
) -> Callable[[], Any]:
    """Return `closure` with its loss, if any, averaged over all workers, so that all take the same decisions from it.

    `means` returns the means of this worker, which are others if the closure lays out parameters that thaw. `weight`
    returns the weight of its loss; None: all weigh the same.
    Workers that are away have no loss. Then an optimizer that needs no closure gets this worker's own loss, by which it
    decides nothing; for another one the closure raises `ConfigurationError`.
    """

    def agreed() -> Any:
        with torch.enable_grad():
            loss = closure()
        if loss is None:  # Lightning gives a closure that does nothing, in manual optimization
            return None
        if means().some_away:
            if needs_closure(plain):
                raise ConfigurationError(
                    f"{plain.__name__} asks for the loss of all workers, and some have none, as they have ended or are "
                    "in world.evaluate(); let all make as many steps"
                )
            return loss
        mean = torch.as_tensor(loss).detach().cpu().to(torch.float64).reshape(1)
        if weight is None:
            mean = means().of_number(mean)
        else:
            count = torch.tensor([weight()], dtype=torch.float64)
            total, count = means().of_number(torch.cat([mean * count if count else count, count])).split(1)
            mean = total / count
        return mean[0].to(loss.device, loss.dtype) if isinstance(loss, torch.Tensor) else float(mean)

    return agreed


def second_order(error: RuntimeError, plain: type[Optimizer]) -> ConfigurationError | None:
    """Return the error for a step that differentiates gradients, of which only numbers exist; else None."""
    if "does not require grad and does not have a grad_fn" not in str(error):
        return None
    return ConfigurationError(
        f"step() of {plain.__name__} differentiates the gradients (as for a Hessian), and under this strategy a step "
        "has only the numbers of several workers' gradients. Use a strategy whose workers step on their own gradients, "
        "such as local-sgd. Or compute the estimate before the step, average it with world.mean, and pass it to the "
        "optimizer"
    )


def takes_closure(plain: type[Optimizer]) -> bool:
    """Return whether the first argument of its `step` is a closure, or any argument."""
    names = list(inspect.signature(plain.step).parameters.values())[1:2]
    return not names or names[0].name == "closure" or names[0].kind is inspect.Parameter.VAR_POSITIONAL


def needs_closure(plain: type[Optimizer]) -> bool:
    """Whether `step` of the class cannot be called without a closure."""
    closure = inspect.signature(plain.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return every number of every parameter group (learning rate, betas, decay), as JSON; tensors are numbers.

    They travel with every round.
    """
    return [
        {key: number for key, value in group.items() if (number := number_of(value)) is not None}
        for group in optimizer.param_groups
    ]


def options_in_force(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of `options_of` that influence the result of a step, sorted by name."""
    return [
        {key: value for key, value in sorted(group.items()) if key not in _HOW_COMPUTED}
        for group in options_of(optimizer)
    ]


def number_of(value: Any) -> Any:
    """Return an option as JSON: a number, a flag, a tensor of one number or a list of numbers; else None."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, int | float):
        return value
    if isinstance(value, tuple | list) and value and all(isinstance(x, int | float) for x in value):
        return list(value)
    return None


@contextmanager
def standing_at(parameters: Sequence[Parameter], at: Flat) -> Iterator[None]:
    """Exchange the numbers of `parameters` for those of `at` inside, in their dtypes, and write those back to it."""
    there = [x if x.dtype == p.dtype else x.to(p.dtype) for p, x in zip(parameters, full_segments(at), strict=True)]
    before = [exchange_numbers(p, x) for p, x in zip(parameters, there, strict=True)]
    try:
        yield
        with torch.no_grad():
            for segment, numbers, x in zip(at.layout.segments, at.segments(), there, strict=True):
                if x is not numbers:
                    numbers.copy_(x if (mask := mask_of(segment)) is None else mask.gather(x))
    finally:
        for p, x in zip(parameters, before, strict=True):
            exchange_numbers(p, x)


class ClearedGradients:
    """The gradients that the newest update of one optimizer has cleared, if it was made on a mean in `.grad`.

    Steps clear gradients by `zero_grad()` in a hook, or by setting `.grad` to None. A step on a mean clears the mean.
    This worker's own gradient comes back behind the step, and the next backward pass would add to it. So it is cleared
    as well, after each call of `step` by the script. A late worker may make that call without an update: then it clears
    what the newest update cleared.
    """

    def __init__(self) -> None:
        self._is_of_mean = False
        self._to_none: dict[Tensor, bool] = {}
        """The parameters, and whether each gradient became None or zeros."""

    def update_begins(self, *, is_of_mean: bool) -> None:
        """Forget the update before. `is_of_mean`: `.grad` has another gradient than this worker's own until it ends."""
        self._is_of_mean = is_of_mean
        self._to_none.clear()

    def note(self, parameters: Iterable[Tensor], *, to_none: bool = True) -> None:
        """Note that the update has cleared the gradients of `parameters`."""
        if self._is_of_mean:
            self._to_none.update(dict.fromkeys(parameters, to_none))

    def clear_own(self) -> None:
        """Clear this worker's own gradients of the same parameters."""
        for p, to_none in self._to_none.items():
            if to_none or p.grad is None:
                p.grad = None
            else:
                p.grad = p.grad if p.grad.grad_fn is None else p.grad.detach()
                p.grad.zero_()


@contextmanager
def with_gradient(
    parameters: Sequence[Parameter], gradient: Flat, used: Sequence[bool] | None, cleared: ClearedGradients
) -> Iterator[None]:
    """Set `.grad` from `gradient` where `used` (None: everywhere), to None elsewhere; restore it on exit.

    `cleared` notes the parameters whose gradients were set to None inside.
    """
    used = [True] * len(parameters) if used is None else used
    kept: list[Tensor | None] = [p.grad for p in parameters]
    try:
        for p, numbers, is_used in zip(parameters, full_segments(gradient), used, strict=True):
            x = None if not is_used else numbers if numbers.dtype is p.dtype else numbers.to(p.dtype)
            p.grad = x if x is None or type(p) is Parameter else as_piece_of(p, x)
        yield
        cleared.note(p for p, is_used in zip(parameters, used, strict=True) if is_used and p.grad is None)
    finally:
        for p, grad in zip(parameters, kept, strict=True):
            p.grad = grad


@contextmanager
def with_rows(
    tables: Sequence[Parameter], gradients: Sequence[Tensor | None], cleared: ClearedGradients
) -> Iterator[None]:
    """Set the `.grad` of sparse tables inside; restore it on exit. `cleared`: see `with_gradient`."""
    kept: list[Tensor | None] = [p.grad for p in tables]
    try:
        for p, x in zip(tables, gradients, strict=True):
            p.grad = x
        yield
        cleared.note(p for p, x in zip(tables, gradients, strict=True) if x is not None and p.grad is None)
    finally:
        for p, grad in zip(tables, kept, strict=True):
            p.grad = grad


def has_gradient(parameters: Sequence[Parameter]) -> bool:
    """Return whether any gradient exists, even of zeros: numbers differ between workers, and must not decide."""
    return any(p.grad is not None for p in parameters)


def own_step_of(optimizer: Optimizer) -> Callable[..., Any] | None:
    """Return the `step` that a script has put on `optimizer`; None: there is none, or a scheduler's."""
    step: Any = optimizer.__dict__.get("step")
    if step is None or not hasattr(step, "_wrapped_by_lr_sched"):
        return cast("Callable[..., Any] | None", step)
    inside: Any = getattr(step, "__wrapped__", None)  # a scheduler keeps the function that it has wrapped
    if inside is None or inside is getattr(type(optimizer).step, "__func__", type(optimizer).step):
        return None
    return MethodType(inside, optimizer)
