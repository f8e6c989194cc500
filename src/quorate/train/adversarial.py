"""Adversarial training: the worst examples near a batch take its place in the user's loss."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import Module

from quorate.core.arguments import one_sentence
from quorate.core.errors import ConfigurationError, unknown
from quorate.core.local_tensor import is_sharded

Attack = Literal["fgsm", "pgd"]
Norm = Literal["inf", "2"]
Loss = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class _Search:
    """The search for the worst inputs: `steps` of `step_size` inside the ball of `epsilon`."""

    epsilon: float
    steps: int
    step_size: float
    norm: Norm
    starts_inside: bool
    bounds: tuple[float, float] | None

    def worst(self, x: Tensor, loss_at: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the last input of the search: x^{t+1} = P(x^t + step_size direction(gradient)), P the projection."""
        plain = x.detach()
        changed = self._inside(plain, plain + self._random(plain)) if self.starts_inside else plain
        for _ in range(self.steps):
            changed = changed.detach().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(loss_at(changed), changed, allow_unused=True)
            if gradient is None:
                raise ConfigurationError(
                    "the loss does not depend on the input that adversarial() changes; name the input"
                )
            changed = self._inside(plain, changed.detach() + self.step_size * self._direction(gradient))
        return changed

    def _direction(self, gradient: Tensor) -> Tensor:
        if self.norm == "inf":
            return gradient.sign()
        return gradient / _lengths(gradient).clamp_min(1e-12)

    def _inside(self, x: Tensor, moved: Tensor) -> Tensor:
        change = moved - x
        if self.norm == "inf":
            change = change.clamp(-self.epsilon, self.epsilon)
        else:
            change = change * (self.epsilon / _lengths(change).clamp_min(1e-12)).clamp_max(1.0)
        changed = x + change
        return changed if self.bounds is None else changed.clamp(*self.bounds)

    def _random(self, x: Tensor) -> Tensor:
        if self.norm == "inf":
            return torch.empty_like(x).uniform_(-self.epsilon, self.epsilon)
        change = torch.randn_like(x)
        each = x[0].numel() if x.dim() else 1
        radius = torch.rand(_lengths(x).shape, device=x.device, dtype=x.dtype) ** (1 / max(1, each))
        return change / _lengths(change).clamp_min(1e-12) * radius * self.epsilon


def _lengths(x: Tensor) -> Tensor:
    """Return the length of every example, broadcastable over `x`."""
    lengths: Tensor = x.flatten(1).norm(dim=1).view(-1, *[1] * (x.dim() - 1)) if x.dim() > 1 else x.abs()
    return lengths


@one_sentence({"epsilon": "it is how far an input may be changed, in the units of the inputs"})
def adversarial(
    loss: Loss,
    *,
    epsilon: float,
    attack: Attack = "pgd",
    steps: int | None = None,
    step_size: float | None = None,
    norm: Norm = "inf",
    clean: float | None = None,
    bounds: tuple[float, float] | None = None,
    of: str | int | None = None,
) -> Loss:
    """Return a loss with the signature of `loss`, computed on the worst inputs within `epsilon` of those of a batch.

    Inner gradients are those of the input alone: no `.grad` changes, no hook of a parameter runs, and workers exchange
    nothing, so any strategy trains with it. The buffers of the model (BatchNorm's statistics) take in only the inputs
    of the loss itself.

    Args:
        loss: Called as `loss(model, batch, ...)`.
        epsilon: The largest change, in the units of the inputs.
        attack: "fgsm" makes one step of length `epsilon` along the sign of the input's gradient (Goodfellow, Shlens,
            Szegedy, ICLR 2015, equations 2 and 3 and section 6). "pgd" makes `steps` steps of `step_size` from a random
            point inside, each projected back. (Madry, Makelov, Schmidt, Tsipras, Vladu, ICLR 2018, equation 2.1 and
            section 2.1.)
        steps: The number of steps of "pgd"; None: 7.
        step_size: The length of its steps; None: 2.5 `epsilon` / `steps`.
        norm: "inf" bounds the change of each number; "2" its length for each example (dimension 0), along the gradient.
        clean: The share of the loss of the unchanged batch in the result; None: 0.5 with "fgsm", 0 with "pgd".
        bounds: The least and the greatest number that an input may have.
        of: The input: a field or key of the batch, or its place; None: the first floating-point tensor after the model.

    Returns:
        A function with the arguments of `loss`.

    Raises:
        ConfigurationError: For invalid settings, and when called: without such an input, and for a model in shards.

    Cost: `steps` more passes forward and backward per step, and one forward where `clean` is between 0 and 1.

    Example:
        >>> def loss(model, batch):
        ...     return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        >>> worst = quorate.adversarial(loss, epsilon=0.1, attack="fgsm")
        >>> worst(model, (inputs, targets)).backward()
    """
    search, share = _search(epsilon, attack, steps, step_size, norm, bounds), 0.5 if attack == "fgsm" else 0.0
    share = share if clean is None else clean
    if not callable(loss):
        raise ConfigurationError(f"loss is a function of a model and a batch, not a {type(loss).__name__}")
    if not 0 <= share <= 1:
        raise ConfigurationError(f"clean is {share}; it must be a share of the loss, from 0 to 1")

    @functools.wraps(loss)
    def of_the_worst(*args: Any, **kwargs: Any) -> Tensor:
        place = _place_of(args, of)
        x = _at(args, place)
        model = next((arg for arg in args if isinstance(arg, Module)), None)
        if model is not None and any(map(is_sharded, model.parameters())):
            raise ConfigurationError("adversarial() needs whole models, but this model is in shards")

        def loss_at(changed: Tensor) -> Tensor:
            return loss(*_with(args, place, changed), **kwargs)

        with _buffers_kept(model):
            worst = search.worst(x, loss_at)
        if share == 0:
            return loss_at(worst)
        if share == 1:
            return loss_at(x)
        return share * loss_at(x) + (1 - share) * loss_at(worst)

    return of_the_worst


def _search(
    epsilon: float,
    attack: str,
    steps: int | None,
    step_size: float | None,
    norm: str,
    bounds: tuple[float, float] | None,
) -> _Search:
    if attack not in get_args(Attack):
        raise unknown("attack", str(attack), get_args(Attack))
    if norm not in get_args(Norm):
        raise unknown("norm", str(norm), get_args(Norm))
    if attack == "fgsm" and (steps is not None or step_size is not None):
        raise ConfigurationError('"fgsm" is one step of length epsilon; give steps and step_size with attack="pgd"')
    count = (1 if attack == "fgsm" else 7) if steps is None else steps
    if not epsilon > 0 or count < 1 or (step_size is not None and not step_size > 0):
        settings = f"epsilon={epsilon}, steps={steps}, step_size={step_size}"
        raise ConfigurationError(f"{settings}: epsilon and step_size must be above 0, and steps at least 1")
    if bounds is not None and not bounds[0] < bounds[1]:
        raise ConfigurationError(f"bounds are {bounds}; they must be the smallest and the largest value of an input")
    usual = epsilon if attack == "fgsm" else 2.5 * epsilon / count
    return _Search(
        epsilon=epsilon,
        steps=count,
        step_size=usual if step_size is None else step_size,
        norm="inf" if norm == "inf" else "2",
        starts_inside=attack == "pgd",
        bounds=bounds,
    )


Place = tuple[Any, ...]
"""Keys and numbers, from outside in, that lead to one tensor."""


def _place_of(args: Sequence[Any], of: str | int | None) -> Place:
    for first, arg in enumerate(args):
        if isinstance(arg, Module):
            continue
        for place, x in _tensors(arg):
            named = of is None or (place and place[0] == of) or _field(arg, of) == place
            if named and x.is_floating_point():
                return (first, *place)
    raise ConfigurationError(
        "there is no floating-point tensor to change behind the model"
        + ("" if of is None else f" under of={of!r}")
        + "; give the loss the batch, and name its input by of="
    )


def _field(batch: Any, of: str | int | None) -> Place | None:
    fields: Sequence[str] = getattr(batch, "_fields", ())
    return (fields.index(of),) if isinstance(of, str) and of in fields else None


def _tensors(batch: Any) -> Iterator[tuple[Place, Tensor]]:
    if isinstance(batch, Tensor):
        yield (), batch
    elif isinstance(batch, Mapping):
        for key, inside in batch.items():
            yield from (((key, *place), x) for place, x in _tensors(inside))
    elif isinstance(batch, list | tuple):
        for number, inside in enumerate(batch):
            yield from (((number, *place), x) for place, x in _tensors(inside))


def _at(batch: Any, place: Place) -> Any:
    for key in place:
        batch = batch[key]
    return batch


def _with(batch: Any, place: Place, x: Tensor) -> Any:
    """Return `batch` with `x` at that place; containers on the path are copied."""
    if not place:
        return x
    key, *rest = place
    inside = _with(batch[key], tuple(rest), x)
    if isinstance(batch, Mapping):
        return {**batch, key: inside}
    items = [inside if number == key else item for number, item in enumerate(batch)]
    if hasattr(batch, "_fields"):
        return type(batch)(*items)
    return items if isinstance(batch, list) else tuple(items)


@contextmanager
def _buffers_kept(model: Module | None) -> Iterator[None]:
    buffers = [] if model is None else list(model.buffers())
    before = [x.detach().clone() for x in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for x, numbers in zip(buffers, before, strict=True):
                x.copy_(numbers)
