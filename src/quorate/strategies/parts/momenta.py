"""Momenta that workers agree on in few bits, once the variance of the optimizer is frozen.

Numbers that no gradient of the warm-up has touched have no variance, so a step would divide by nearly 0. They stay as
they are, and are not encoded: workers agree on the others (by `or`) in one dense mean. It also has the unit of each
tensor, the root of the mean of its variance. Momenta travel in these units, since tensors of one part share a scale.

Under 0/1 Adam the momenta of local steps add up to the delta from a common point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.resize import kept
from quorate.core.strategy import Strategy, Worker
from quorate.core.vectors import Flat
from quorate.strategies.parts.edits import WithPoint

SETTLED = 0.96
"""The least ratio of two norms of the variance, `Moments.memory` steps from each other, at which it has settled."""
_LOOKS = 10
"""The number of norms that are taken in so many steps."""


@dataclass(frozen=True, kw_only=True)
class FreezeSettings(Strategy):
    """A strategy that freezes the variance of Adam, and encodes momenta."""

    compresses = "momenta"
    reduction: ClassVar[Mapping[str, object]] = {"compress": "sign:scale=l2", "reduce": "two-phase"}

    freeze: int | float | Literal["auto"] = "auto"
    """The last step of the warm-up: a number of steps, or a share (0.15) of `total_steps`. "auto": the learning rate no
    longer rises, and since then the norm of the variance has changed by less than 4 % in 1 / (1 - beta2) steps."""
    total_steps: int = 0
    """The number of steps of the training, where `freeze` is a share of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.freeze == "auto":
            return
        if isinstance(self.freeze, int) and self.freeze < 1:
            raise ConfigurationError(f'freeze is {self.freeze}; it must be a number of steps from 1 on, or "auto"')
        if isinstance(self.freeze, float) and not (0 < self.freeze < 1 and self.total_steps > 0):
            raise ConfigurationError(
                f"freeze is {self.freeze} and total_steps {self.total_steps}; a share of them is between 0 and 1"
            )

    @property
    def warm_up(self) -> int | None:
        """The number of steps of the warm-up; None: it ends when the variance has settled."""
        if self.freeze == "auto":
            return None
        return self.freeze if isinstance(self.freeze, int) else max(1, math.ceil(self.freeze * self.total_steps))


@dataclass(kw_only=True)
class WarmUp:
    """The steps before the variance is frozen, which are equal on all workers."""

    highest_rate: float = kept("same", default=0.0)
    norms: list[float] = kept("same", default_factory=list, is_adapted=True)
    """The newest norms of the variance, since the learning rate has risen last."""

    def is_over(self, worker: Worker, warm_up: int | None) -> bool:
        """Return whether the step that the worker has just made is the last one of all workers.

        Workers that have paused may be steps behind, so each votes, and all learn the outcome in the same mean.
        """
        moments = worker.replica.moments
        least = moments.memory if warm_up is None else warm_up
        is_ready = self.has_settled(worker) if warm_up is None else moments.steps >= warm_up - 1
        return worker.means.vote(is_ready) and moments.steps >= least

    def has_settled(self, worker: Worker, squares: int | None = None) -> bool:
        """Note the norm of a variance of so many squares (None: of each step), and return whether it has settled."""
        rate, moments = max(worker.replica.learning_rates), worker.replica.moments
        if rate > self.highest_rate:
            self.highest_rate, self.norms = rate, []
        if moments.steps % math.ceil(moments.memory / _LOOKS):
            return False
        self.norms = [*self.norms, moments.variance_norm(squares)][-_LOOKS - 1 :]
        low, high = sorted((self.norms[0], self.norms[-1]))
        return len(self.norms) > _LOOKS and low >= SETTLED * high


def begin_warm_up(worker: Worker, warm_up: int | None) -> None:
    """Begin with means of gradients. Raises `ConfigurationError` for an optimizer without a momentum to encode."""
    worker.replica.moments.check()
    worker.means.step_alone(False)
    worker.means.vote(warm_up == 1)


@dataclass(kw_only=True)
class Momenta(WarmUp):
    """The momentum of all workers, which travels in few bits once the variance is frozen."""

    is_frozen: bool = kept("same", default=False)
    units: list[float] = kept("same", default_factory=list, is_adapted=True)
    """The unit of each tensor; 0 where none of its numbers was touched."""
    touched: list[Tensor | None] = kept("same", default_factory=list, is_adapted=True)
    """The places of the touched numbers of each tensor; None: all are."""

    def freeze(self, worker: Worker, units: Flat) -> None:
        """Freeze the variance, and go on with codes; `units` is the mean of `Moments.units` of all workers."""
        self.take_units(units)
        self.is_frozen = True
        worker.replica.moments.correct_variance()
        self.go_on(worker, units)

    def take_units(self, units: Flat) -> None:
        """Take the touched numbers, and the units of tensors that have none yet."""
        is_touched = [(numbers != 0).flatten() for numbers in units.segments()]
        self.touched = [None if bool(flags.all()) else flags.nonzero().flatten().cpu() for flags in is_touched]
        new = [float(numbers.abs().amax()) if numbers.numel() else 0.0 for numbers in units.segments()]
        self.units = [old or unit for old, unit in zip(self.units or new, new, strict=True)]

    def go_on(self, worker: Worker, like: Flat) -> None:
        """Let sums be codes from the next one on, if the variance is frozen."""
        worker.means.step_alone(self.is_frozen)
        if self.is_frozen:
            self.encode(worker, like)

    def encode(self, worker: Worker, like: Flat) -> None:
        """Let sums be codes of the touched numbers from the next one on."""
        names = [segment.name for segment in like.layout.segments]
        chosen = {name: places for name, places in zip(names, self.touched, strict=False) if places is not None}
        worker.means.code(chosen)

    def mean_of(self, worker: Worker, momentum: Flat, weight: float, numbers: Sequence[float] = ()) -> Mean:
        """Return the mean of the momenta of all workers, as all decode it; waits for all. `momentum` is overwritten.

        `numbers` of each worker follow the momentum, and are sent as they are.
        """
        sent = self.scale_(momentum)
        if numbers:
            sent = blank_with(worker, numbers, sent)
        return Mean(mean=worker.means.of(sent, weight=weight, looks=True).wait())

    def momentum_in(self, worker: Worker, mean: Flat) -> Flat:
        """Return the momentum in a mean."""
        return self.scale_(worker.replica.parameters_of(mean), to_units=False)

    def scale_(self, x: Flat, *, to_units: bool = True) -> Flat:
        """Divide or multiply `x` by the units, in place; untouched numbers become 0.

        Raises `ConfigurationError` if other layers train than in the warm-up.
        """
        if len(x.layout.segments) != len(self.units):
            raise ConfigurationError(
                "other layers train than in the warm-up, whose variances are frozen; freeze, thaw and add layers "
                "during the warm-up (freeze=), or train under all-reduce"
            )
        for numbers, unit, places in zip(x.segments(), self.units, self.touched, strict=True):
            flat = numbers.view(-1)
            if not unit:
                flat.zero_()
                continue
            if places is not None:
                values = flat[places.to(flat.device)]
                flat.zero_()[places.to(flat.device)] = values
            flat.mul_(1 / unit if to_units else unit)
        return x


def blank_with(worker: Worker, numbers: Sequence[float], x: Flat | None = None) -> Flat:
    """Return a vector of `x` (None: zeros), behind which `numbers` are sent as they are."""
    sent = worker.replica.read(numbers=numbers)
    for place, into in enumerate(sent.segments()[:-1]):
        into.zero_() if x is None else into.copy_(x.segment(place))
    return sent


def mean_of_units(worker: Worker) -> Mean:
    """Return the mean of the units of all workers' tensors; waits for all."""
    return Mean(mean=worker.means.of(worker.replica.moments.units()).wait())


Kind = Literal["squares", "units", "momenta"]
_LEAST = 1e-20
"""The least rate in u_i, so that a momentum survives steps without a rate."""


@dataclass(kw_only=True)
class AccumulatedMomenta(Momenta, WithPoint):
    """The momentum of one worker, and its local steps since the point that all had in common."""

    next: Kind = kept("same", default="squares")
    """The content of the next mean."""
    squares: int = kept("same", default=0)
    """The number of squares in the variance."""
    steps: int = kept("same", default=0)
    """The number of steps before the freeze, or since then."""
    due: int = kept("same", default=1)
    """The number of the step that has squares next."""
    point: Flat | None = kept("same", default=None)
    """x_{t'}: the parameters after the last mean."""
    moved: Flat | None = kept("average", default=None)
    """u_i."""
    rates: list[float] = kept("average", default_factory=list, is_adapted=True)
    """The sum of the rates in u_i, by parameter group."""
    local: float = kept("average", default=0.0)
    """The number of steps in u_i."""
    weight: float = kept("average", default=0.0)
    """The sum of their weights."""

    shown: Flat | None = kept("drop", default=None)
    """The parameters after the newest local step."""

    def count_squares(self, doubles_after: int) -> None:
        """Count the squares of this step, whose distance doubles after so many of them."""
        self.squares += 1
        self.due = self.steps + 1 + int(2 ** min(self.squares // doubles_after, 30))

    def begin_local_steps(self, worker: Worker) -> None:
        """Freeze the variance."""
        self.is_frozen, self.steps = True, 0
        worker.replica.moments.correct_variance(self.squares)
        self.restart(worker)

    def distance(self, double_every: int, longest: int) -> int:
        """Return the number of steps from the last mean to the next."""
        return min(longest, int(2 ** min(self.steps // double_every, 30)))

    def move(self, worker: Worker, momentum: Flat) -> None:
        """Add a local step to u_i."""
        rates = [max(rate, _LEAST) for rate in worker.replica.learning_rates]
        moved = worker.replica.by_group(momentum, rates)
        self.moved = moved if self.moved is None else self.moved.add_(moved)
        self.rates = [total + rate for total, rate in zip(self.rates or [0.0] * len(rates), rates, strict=True)]
        self.local, self.weight = self.local + 1, self.weight + worker.weight

    def go_back(self, worker: Worker) -> None:
        """Return to the common point, which moves by what the script has written into the parameters since then."""
        assert self.point is not None
        worker.replica.take_edits(self.point if self.shown is None else self.shown, into=self.point)
        worker.parameters = self.point

    def forget_steps(self) -> None:
        self.moved, self.rates, self.local, self.weight = None, [], 0.0, 0.0

    def restart(self, worker: Worker) -> None:
        """Begin local steps from the parameters as they are."""
        self.point, self.shown = worker.parameters, None
        self.forget_steps()

    def turn(self, worker: Worker, kind: Kind) -> None:
        """Let the next mean be of this kind."""
        self.next = kind
        if kind == "momenta":
            self.encode(worker, worker.gradient)
        else:
            worker.means.code(None)


def begin_squares(worker: Worker) -> AccumulatedMomenta:
    """Return the state before the first step; the optimizer may have moments from before."""
    begin_warm_up(worker, None)
    worker.means.code(None)
    if worker.step:  # other parameters are trained than before, and the variances of new ones have no squares
        worker.replica.forget_moments()
    count = worker.replica.moments.steps
    return AccumulatedMomenta(squares=count, steps=count, due=count + 1)


def numbered(worker: Worker, rates: Sequence[float], x: Flat | None = None, uncounted: int = 0) -> Flat:
    """Return a vector with the rates behind it, and the number of steps, which is less where a worker has paused."""
    return blank_with(worker, [*rates, worker.replica.moments.steps + uncounted], x)
