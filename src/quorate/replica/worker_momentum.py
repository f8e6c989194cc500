"""Momentum of one worker's own gradients, where gradients come late; the optimizer that all share runs without any.

A shared optimizer whose momentum includes gradients that are rounds old is damped too little. In a quadratic, learning
rate times curvature times delay has to stay below 1 - beta. So each worker remembers its own gradients g, and sends its
momentum, one step ahead, in place of g; all workers apply the mean of the contributions (`shared_step`):

    SGD    v = beta v + g                      sends g + beta v
    Adam   m = beta1 m + (1 - beta1) g         sends (beta1 m + (1 - beta1) g) / (1 - beta1^(k + 1)), k its gradients

Where no worker is late the first is SGD with Nesterov's momentum on the mean gradient, whichever of both was chosen.
If gradients are late by D synchronous steps in the mean, the momentum is taken 1 + D steps ahead. Less of it is left,
and the newest gradient counts more (the sum of all moves by a gradient stays the same). L2 decay is a part of g.

Source: Hakimi, Barkai, Gabel, Schuster, "Taming momentum in a distributed asynchronous environment", 2019 (DANA, its
slim form), for SGD; the rest is ours, see docs/decisions/momentum.md#0018. Memory: a number for each
parameter. Cost of a step: two passes over the gradient with SGD, five with Adam.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.core.device_copies import values_of
from quorate.core.local_tensor import as_piece_of, local
from quorate.core.vectors import Flat, Layout, full_segments, has_masks, mask_of
from quorate.optim.lars import LARS
from quorate.replica.optimizer_state import growth_with_gradient, keeps_squares

MomentumChoice = Literal["auto", "worker", "common"]
"""The keeper of the momentum: the workers, if there is one; the workers; or the shared optimizer."""
Sums = Callable[[Sequence[float]], Sequence[float]]
Kind = Literal["sgd", "adam", "nadam", "rmsprop", "lion", "muon", "scale-free"]

HEAVY_BALL = "momentum_buffer"
AVERAGE = "exp_avg"
"""torch's names for the momentum, depending on the optimizer."""
_DELAYS = 0.9
"""The factor of the old value in the running mean of delays."""
_COSINES = 0.95
"""The factor of the old value in the running mean of cosines."""
_WITH_L2 = {"SGD", "Adam", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta"}
"""torch's classes whose decay is a part of the gradient, unless a group says otherwise."""
TINY = 1e-30
"""The energy of a gradient if it is unknown: above 0, as the parameter is used."""
_OPTIONS = ("momentum", "weight_decay", "dampening", "maximize", "betas", "decoupled_weight_decay")
"""Options of a parameter group that enter its momentum."""
_WITH_ENERGIES = ("adam", "nadam", "rmsprop")
BLOCK = 1 << 16
"""Numbers of the vector and of the momentum in a block: 256 KiB of each in float32."""


def kind_of(plain: type[Optimizer], groups: Sequence[dict[str, Any]], keeps: Sequence[str]) -> Kind | None:
    """Return how workers keep the momentum of an optimizer of class `plain`; None: it has none, or it is unknown.

    `keeps` are the names of its state of each parameter. "scale-free": steps do not scale with the gradient, and it has
    no momentum or keeps it. LARS keeps it: its momentum is of steps that are scaled already.
    """
    if issubclass(plain, LARS):
        return "scale-free"
    names = {base.__name__ for base in plain.__mro__ if base.__module__.startswith("torch.optim")} - {"Optimizer"}
    has_momentum = any(group.get("momentum") for group in groups)
    if "SGD" in names:
        return "sgd" if has_momentum else None
    if "NAdam" in names:
        return "nadam"
    if names & {"Adam", "AdamW", "RAdam", "Adamax"}:
        return "adam"
    if "RMSprop" in names:
        return "rmsprop" if has_momentum else "scale-free"
    if "Muon" in names:
        return "muon"
    if names & {"Adagrad", "Adadelta"}:
        return "scale-free"
    if names:  # another of torch's
        return None
    if AVERAGE in keeps and all(len(group.get("betas", ())) == 2 for group in groups):
        if "exp_avg_sq" in keeps and not all(keeps_squares(plain, group) for group in groups):
            return None
        return "adam" if {"exp_avg_sq", "exp_inf"} & set(keeps) else "lion"
    if not has_momentum or HEAVY_BALL not in keeps:
        return None
    growths = {growth_with_gradient(plain, group) for group in groups}
    return "sgd" if growths == {2} else "muon" if growths == {1} else None


def in_words(kind: Kind, name: str) -> str:
    """Return the notice for an optimizer of class `name` whose momentum workers keep, or which is scale-free."""
    if kind == "scale-free":
        return f'a round is as much of a step of {name} as it has of the workers (momentum="worker")'
    return f'each worker keeps the momentum of its own gradients in {name} (momentum="worker")'


def has_moments(plain: type[Optimizer], groups: Sequence[dict[str, Any]]) -> bool:
    """Return whether an optimizer remembers gradients, or may."""
    if "SGD" in {base.__name__ for base in plain.__mro__} or issubclass(plain, LARS):
        return any(group.get("momentum") for group in groups)
    return True


@dataclass
class OwnMoment:
    """The momentum of one parameter."""

    m: Tensor
    count: int = 0
    """The number of gradients in it."""
    left: float = 1.0
    """The share of its beginning, which was 0, that is left: the product of all factors."""
    ahead: float = 1.0
    """NAdam: the product of its momenta."""
    cosine: float | None = None
    """The running mean of the cosine between a gradient and the momentum before it."""

    @property
    def numbers(self) -> list[float | None]:
        """All fields but the tensor."""
        return [self.count, self.left, self.ahead, self.cosine]


@dataclass
class WorkerMomentum:
    """The momenta of one of `size` workers, by parameter."""

    optimizer: Optimizer
    plain: type[Optimizer]
    kind: Kind
    size: int
    own: dict[Tensor, OwnMoment] = field(default_factory=dict)
    delay: float = 0.0
    """The mean number of synchronous steps between this worker's parameters and its gradient's round."""
    sums: Sums = list
    """Sums numbers of this worker's piece over all pieces of its replica."""

    def was_late(self, steps: float) -> None:
        """Note that a round has taken in a gradient of this worker, `steps` synchronous steps after its parameters."""
        self.delay = _DELAYS * self.delay + (1 - _DELAYS) * steps

    @property
    def lead(self) -> float:
        """How many steps ahead the momentum is taken: one, and as many as gradients are late."""
        return 1.0 + self.delay

    @property
    def smoothing(self) -> float:
        """The share of the noise of a gradient (its variance over its squared mean) in a contribution."""
        if self.kind == "scale-free":
            return 1.0
        beta = beta_of(self.optimizer.param_groups[0])
        if beta >= 1:
            return 1.0
        old = math.pow(beta, self.lead)
        return (1 - old * beta) ** 2 + (1 - beta) ** 2 * (old * beta) ** 2 / (1 - beta**2)

    def ahead(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        weight: float = 1.0,
        numbers: Sequence[float] | None = None,
    ) -> tuple[list[Tensor | None], list[float]]:
        """Return contributions in place of `gradients`, which count `weight` and do not change; and their energies.

        The energy of a gradient is its expected square sum in synchronous training. `numbers` are the values of
        `products`, if they are known.
        """
        group_of = {p: group for group in self.optimizer.param_groups for p in group["params"]}
        pairs = [(p, local(g)) for p, g in zip(parameters, gradients, strict=True) if g is not None]
        with torch.no_grad():
            decayed = [self._with_decay(p, g, group_of[p]) for p, g in pairs]
            own = [p for p, _ in pairs]
            if numbers is None:
                numbers = values_of(self._products(own, decayed))
            energies = dict(zip(own, self._energies(own, numbers), strict=True))
            contributions = {
                p: self._contribution(p, g, group_of[p], weight) for (p, _), g in zip(pairs, decayed, strict=True)
            }
        return [contributions.get(p) for p in parameters], [energies.get(p, 0.0) for p in parameters]

    def products(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """Return the sums on which energies depend; a GPU is not waited for."""
        if self.kind not in _WITH_ENERGIES:
            return []
        group_of = {p: group for group in self.optimizer.param_groups for p in group["params"]}
        pairs = [(p, local(g)) for p, g in zip(parameters, gradients, strict=True) if g is not None]
        with torch.no_grad():
            return self._products([p for p, _ in pairs], [self._with_decay(p, g, group_of[p]) for p, g in pairs])

    def _with_decay(self, p: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """Return `gradient`, dense, with L2 decay of this worker's parameter."""
        g = gradient.to_dense() if gradient.layout != torch.strided else gradient
        decay = float(group.get("weight_decay") or 0.0)
        if decay and not is_decoupled(group, self.plain):
            g = g.add(local(p), alpha=-decay if group.get("maximize") else decay)
        return g

    def _contribution(self, p: Tensor, g: Tensor, group: dict[str, Any], weight: float) -> Tensor:
        if self.kind == "scale-free":
            return g * weight
        if self.kind == "sgd":
            return self._heavy_ball(p, g * weight if weight != 1.0 else g, group)
        own = self.own.get(p) or self.own.setdefault(p, OwnMoment(torch.zeros_like(g)))
        beta = beta_of(group)
        if self.kind == "lion":
            contribution = (own.m * beta).add_(g, alpha=1 - beta)
            beta = float(group["betas"][1])
        own.m.lerp_(g, 1 - beta)
        own.count += 1
        own.left *= beta
        if self.kind == "nadam":
            contribution = _nadam(own, g, beta, group)
        elif self.kind != "lion":
            old = math.pow(beta, self.lead)
            contribution = (own.m * old).add_(g, alpha=1 - old * beta - old * (1 - beta)).div_(1 - own.left * old)
        return contribution.mul_(weight) if weight != 1.0 else contribution

    def heavy_ball_factors(self, group: dict[str, Any], *, has_begun: bool) -> tuple[float, float, float, float]:
        """Return the factors of SGD's momentum: of the old one, of the new one and of the gradient in the contribution,
        and of the gradient in the new momentum."""
        beta = beta_of(group)
        taken = 1 - float(group.get("dampening") or 0.0) if has_begun else 1.0  # torch takes the first as it is
        old = math.pow(beta, self.lead)
        return beta, old, taken * (1 - old * beta) / (1 - beta), taken

    def _heavy_ball(self, p: Tensor, g: Tensor, group: dict[str, Any]) -> Tensor:
        if beta_of(group) == 0.0:
            return g
        beta, old, ahead, taken = self.heavy_ball_factors(group, has_begun=p in self.own)
        own = self.own.get(p) or self.own.setdefault(p, OwnMoment(torch.zeros_like(g)))
        own.m.mul_(beta)
        contribution = (own.m * old).add_(g, alpha=ahead)
        own.m.add_(g, alpha=taken)
        own.count += 1
        return contribution

    def _products(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        sums: list[Tensor] = []
        for p, g in zip(parameters, gradients, strict=True) if self.kind in _WITH_ENERGIES else ():
            own = self.own.get(p)
            sums += [_dot(g, g), *((_dot(g, own.m), _dot(own.m, own.m)) if own is not None else ())]
        return sums

    def _energies(self, parameters: Sequence[Tensor], products: Sequence[float]) -> list[float]:
        """Return the energies. The signal in a gradient follows from its cosine with the momentum before it, where
        noise has cancelled out. With x the share of signal, and c that of the noise in the momentum:

        cos^2 = x^2 / (x + c (1 - x)).
        """
        if self.kind not in _WITH_ENERGIES or not parameters:
            return [TINY] * len(parameters)
        before = [self.own.get(p) for p in parameters]
        numbers = iter(self.sums(products))
        return [
            self._energy(own, next(numbers), *((next(numbers), next(numbers)) if own is not None else ()))
            for own in before
        ]

    def _energy(self, own: OwnMoment | None, square: float, product: float = 0.0, momentum: float = 0.0) -> float:
        if own is None or not own.count:
            return max(TINY, square * (1 + 1 / self.size) / 2)  # the signal is unknown yet
        cosine = product / math.sqrt(square * momentum) if square * momentum > 0 else 0.0
        own.cosine = cosine if own.cosine is None else _COSINES * own.cosine + (1 - _COSINES) * cosine
        beta = mean_factor(own)
        c = (1 - beta) / (1 + beta) * (1 + own.left) / max(1 - own.left, TINY)
        squared = max(0.0, own.cosine) ** 2
        signal = min(1.0, (squared * (1 - c) + math.sqrt(squared**2 * (1 - c) ** 2 + 4 * squared * c)) / 2)
        return max(TINY, square * (signal + (1 - signal) / self.size))


def mean_factor(own: OwnMoment) -> float:
    """Return the factor by which the memory has faded with each gradient, in the geometric mean."""
    return math.exp(math.log(max(own.left, TINY)) / own.count)


def beta_of(group: dict[str, Any]) -> float:
    """Return the factor of the momentum of a parameter group."""
    return float(group["betas"][0] if "betas" in group else group.get("momentum") or 0.0)


def is_decoupled(group: dict[str, Any], plain: type[Optimizer]) -> bool:
    """Return whether the weight decay of a parameter group is not a part of its gradient."""
    if "decoupled_weight_decay" in group:
        return bool(group["decoupled_weight_decay"])
    return not _WITH_L2 & {base.__name__ for base in plain.__mro__}


def _nadam(own: OwnMoment, g: Tensor, beta: float, group: dict[str, Any]) -> Tensor:
    """Return the numerator of a step of torch's NAdam."""
    decay = float(group["momentum_decay"])
    now, following = (beta * (1 - 0.5 * 0.96 ** (count * decay)) for count in (own.count, own.count + 1))
    own.ahead *= now
    numerator: Tensor = own.m * (following / (1 - own.ahead * following))
    return numerator.add_(g, alpha=(1 - now) / (1 - own.ahead))


def _dot(x: Tensor, y: Tensor) -> Tensor:
    if x.is_complex():
        x, y = torch.view_as_real(x), torch.view_as_real(y)
    if x.dtype in (torch.float16, torch.bfloat16):
        x, y = x.float(), y.float()
    if x.is_contiguous() and y.is_contiguous():
        return torch.dot(x.view(-1), y.view(-1))
    return (x * y).sum()


def kept_moments(
    momentum: WorkerMomentum, parameters: Sequence[Tensor], into: Flat
) -> tuple[Flat, list[list[float | None]]]:
    """Return the momenta of `parameters`, written into `into`, a vector of zeros, and the numbers of each."""
    none = OwnMoment(torch.empty(0))
    moments = [momentum.own.get(p, none) for p in parameters]
    for own, segment, place in zip(moments, into.layout.segments, into.segments(), strict=True):
        if own is not none:
            place.copy_(own.m if (mask := mask_of(segment)) is None else mask.gather(own.m))
    return into, [own.numbers for own in moments]


def restore_moments(
    momentum: WorkerMomentum, parameters: Sequence[Tensor], kept: Sequence[tuple[Flat, list[list[Any]]]]
) -> None:
    """Set the momenta to the mean of the `kept` of several workers; one worker's are unchanged."""
    momentum.own.clear()
    vectors = [(full_segments(vector), numbers) for vector, numbers in kept]
    for place, p in enumerate(parameters):
        pairs = [(segments[place], numbers[place]) for segments, numbers in vectors if numbers[place][0]]
        if pairs:
            m = torch.zeros_like(local(p))
            for x, _ in pairs:
                m.add_(x.to(p.dtype), alpha=1.0 if len(kept) == 1 else 1 / len(kept))
            count, left, ahead, cosine = pairs[0][1]
            momentum.own[p] = OwnMoment(m, int(count), float(left), float(ahead), cosine)


def follow_plain(momentum: WorkerMomentum) -> None:
    """Put the momentum into the `state_dict()` of the optimizer, and take it from the state that it loads."""
    _from_plain(momentum)
    momentum.optimizer.register_state_dict_post_hook(lambda _, state: _into_plain(momentum, state))
    momentum.optimizer.register_load_state_dict_post_hook(lambda _: _from_plain(momentum))


def _key(momentum: WorkerMomentum) -> str | None:
    """Return torch's name for it; None where torch's is of another kind (RMSprop's is of scaled gradients)."""
    if momentum.kind in ("rmsprop", "scale-free"):
        return None
    return HEAVY_BALL if momentum.kind in ("sgd", "muon") else AVERAGE


def _into_plain(momentum: WorkerMomentum, state: dict[str, Any]) -> dict[str, Any]:
    key, kept = _key(momentum), dict(state["state"])
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [p for group in momentum.optimizer.param_groups for p in group["params"]]
    for number, p in zip(numbers, parameters, strict=True):
        own = momentum.own.get(p)
        if own is None or key is None:
            continue
        entry = kept[number] = dict(kept.get(number, {}))
        m = own.m.clone()
        if momentum.kind in ("adam", "nadam"):  # torch divides by what its own count of steps makes of it
            begun = 1 - mean_factor(own) ** float(entry.get("step", own.count))
            m.mul_(begun / max(1 - own.left, TINY))
        entry[key] = as_piece_of(p, m)
        if "mu_product" in entry:
            entry["mu_product"] = torch.full_like(entry["mu_product"], own.ahead)
    return {**state, "state": kept}


def _from_plain(momentum: WorkerMomentum) -> None:
    key = _key(momentum)
    group_of = {p: group for group in momentum.optimizer.param_groups for p in group["params"]}
    for p, state in momentum.optimizer.state.items():
        if key is None or state.get(key) is None:
            continue
        count = int(float(state.get("step", 1))) or 1
        beta = float(group_of[p]["betas"][1]) if momentum.kind == "lion" else beta_of(group_of[p])
        momentum.own[p] = OwnMoment(local(state[key]).detach().clone(), count, beta**count)
        momentum.own[p].ahead = float(state.get("mu_product", 0.0)) or 1.0
        if momentum.kind == "sgd":
            del state[key]


class FlatMomentum:
    """`WorkerMomentum.ahead` for SGD, written into a vector: the same numbers in half the time and without memory.

    The momenta of `momentum` become views of one vector, also for all other methods. Cost of a step: the gradient is
    read once, and the vector and the momentum are read and written twice and once, in blocks.
    """

    def __init__(self, momentum: WorkerMomentum, parameters: Sequence[Tensor], layout: Layout) -> None:
        self.layout, self.momentum, self._parameters = layout, momentum, tuple(parameters)
        self._numbers: Flat | None = None
        self._dtypes = [layout.parts[segment.part].dtype for segment in layout.segments]
        self._scratch = [torch.empty(min(BLOCK, part.numel), dtype=part.dtype) for part in layout.parts]
        self._ends = [0] * len(layout.parts)
        for segment in layout.segments:
            self._ends[segment.part] = max(self._ends[segment.part], segment.offset + segment.numel)
        self._owns: list[OwnMoment] = []
        self._kept: list[OwnMoment] = []
        """The momenta that parameters had when `takes` looked: all, or none."""

    def takes(self, gradients: Sequence[Tensor | None]) -> bool:
        """Return whether `step` can be made.

        It needs parameters with the same options, and dense gradients on the CPU in the dtype of the vector. Either all
        have a momentum or none. Else `WorkerMomentum.ahead` does it.
        """
        group = self._common_group()
        if group is None or beta_of(group) == 0.0 or has_masks(self.layout) or not self._are_plain(gradients):
            return False
        self._kept = [own for own in map(self.momentum.own.get, self._parameters) if own is not None]
        return len(self._kept) in (0, len(self._parameters))

    def numbers_of(self, vector: Flat) -> list[Tensor]:
        """Return the parts of a vector without its header."""
        return [x[:end] for x, end in zip(vector.parts, self._ends, strict=True)]

    def step(self, vector: Flat, *, weight: float, scale: float) -> list[float]:
        """Turn the gradient in `vector` into `scale` times the momentum one step ahead, and return its energies; called
        after `takes`.

        Args:
            vector: The gradient, which counts `weight`; it is overwritten.
            scale: A factor of the result; it does not enter the momentum.
        """
        group = self.momentum.optimizer.param_groups[0]
        factors = self.momentum.heavy_ball_factors(group, has_begun=self._adopt())
        decay = float(group.get("weight_decay") or 0.0)
        with torch.no_grad():
            if decay and not is_decoupled(group, self.momentum.plain):
                parameters, segments = [local(p) for p in self._parameters], list(vector.segments())
                torch._foreach_add_(segments, parameters, alpha=-decay if group.get("maximize") else decay)
            assert self._numbers is not None
            for x, m, scratch, end in zip(vector.parts, self._numbers.parts, self._scratch, self._ends, strict=True):
                _step(x[:end], m, scratch, factors, weight, scale)
        for own in self._owns:
            own.count += 1
        return [TINY] * len(self._parameters)

    def _common_group(self) -> dict[str, Any] | None:
        """Return the options that all parameters have; None where they differ, or another momentum is kept."""
        if self.momentum.kind != "sgd":
            return None
        first, *others = self.momentum.optimizer.param_groups
        names = [name for name in _OPTIONS if name in first]
        are_same = all(group.get(name) == first[name] for group in others for name in names)
        return first if are_same else None

    def _are_plain(self, gradients: Sequence[Tensor | None]) -> bool:
        for x, dtype in zip(gradients, self._dtypes, strict=True):
            if x is None or x.dtype is not dtype or not x.is_cpu or x.layout is not torch.strided:
                return False
        return True

    def _adopt(self) -> bool:
        """Make the momenta views of one vector, and return whether they have begun."""
        moments, owns = self.momentum.own, self._kept
        if owns and len(owns) == len(self._owns) and all(map(is_, owns, self._owns)):
            return True
        if self._numbers is None:
            self._numbers = Flat.zeros(self.layout)
        views = self._numbers.segments()
        for index, p in enumerate(self._parameters):
            if p in moments:
                views[index].copy_(moments[p].m)
                moments[p].m = views[index]
            else:
                moments[p] = OwnMoment(views[index].zero_())
        self._owns = [moments[p] for p in self._parameters]
        return bool(owns)


def _step(
    x: Tensor, m: Tensor, scratch: Tensor, factors: tuple[float, float, float, float], weight: float, scale: float
) -> None:
    beta, old, ahead, taken = factors
    for begin in range(0, len(x), BLOCK):
        block = slice(begin, min(begin + BLOCK, len(x)))
        gradient, moment, ahead_of_it = x[block], m[block], scratch[: block.stop - begin]
        if weight != 1.0:
            gradient.mul_(weight)
        torch.mul(moment.mul_(beta), old, out=ahead_of_it).add_(gradient, alpha=ahead)
        moment.add_(gradient, alpha=taken)
        torch.mul(ahead_of_it, scale, out=gradient)
