"""Outer steps: the optimizer whose gradient is the mean delta of all workers, what it remembers, and what it gains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from quorate.core.contracts import Work
from quorate.core.device_copies import values_of
from quorate.core.errors import ConfigurationError
from quorate.core.resize import kept
from quorate.core.strategy import Strategy, Worker
from quorate.core.vectors import Flat
from quorate.strategies.parts.edits import WithPoint, edit_of
from quorate.strategies.parts.fragments import By, Fragment, among, fragments_of
from quorate.strategies.parts.local_steps import Period, SynchronousPhase, period_from, take_mean

NEWEST, NORM, SMOOTHED = "newest gradient", "its norm", "smoothed rho"
"""Keys of the memory beside the outer optimizer's own: the outer gradient before, in bfloat16, and a mean of rho."""
SHARE = 0.5
"""The weight of the newest rho in the smoothed one."""
BUFFER = "momentum_buffer"
"""The name under which SGD remembers its momentum."""
PIECE = 1 << 16
"""Numbers that are summed up in single precision."""
PUBLISHED, SHORT, SHORTEST, MEASURED = (0.7, 0.9), (1.0, 0.5), (1.0, 0.3), (0.7, 0.7)
"""The outer rate and momentum: as published, of short and of the shortest periods, and the rate and the greatest
momentum of a measured gain. They follow from a sweep: see docs/benchmarks/local-steps.md."""
LONG, FEW = 300, 10
"""Local steps of a period: from `LONG` on the published outer step is used, which was made for some hundred. Below
`FEW` outer momentum is small: beside momentum in local steps more of it makes late outer steps unstable."""
GRAIN = 1 / 4096
"""The least momentum that is chosen. Momenta are never 0, with which SGD would leave its momentum as it is."""


@dataclass(frozen=True)
class OuterOptimizer:
    """An optimizer of points that all workers have in common."""

    kind: str
    """A name of `replica.outer_optimizer.KINDS`."""
    rate: float
    momentum: float
    is_nesterov: bool
    device: str
    """The place of points: "own" is beside the model, "cpu" in the host's memory."""
    reach: float | None = None
    """The length of a step along its gradient, in gradients, for which the momentum is chosen; None: it is not."""

    def place(self, x: Flat) -> Flat:
        """`x` where points lie."""
        return x.map(torch.Tensor.cpu) if self.device == "cpu" else x

    def step(self, worker: Worker, point: Flat, gradient: Flat, memory: dict[str, Any], fragment: int) -> None:
        """Move `point`, where all are in a fragment, in place, by one step along `gradient`, and record it."""
        options: dict[str, Any] = {"lr": self.rate, "eps": 1e-3}
        momentum = self._momentum_of(gradient, memory)
        if self.kind == "sgd":
            options = {"lr": self.rate, "momentum": momentum, "nesterov": self.is_nesterov and momentum > 0}
        elif self.kind == "adam":
            options["betas"] = (momentum, 0.99)
        before, own = point.clone(), of_optimizer(memory)
        worker.updater(point, own, kind=self.kind, **options)(gradient)
        memory.update(own)
        measures = measured(before, point, gradient, memory, self.rate)
        reach = None if measures.gain is None else measures.gain * self.rate
        worker.note_outer_step(fragment, {"momentum": momentum, **measures.as_row()}, reach=reach)

    def momenta(self, memory: Mapping[str, Any]) -> list[Tensor]:
        """Return the momentum in `memory` in the unit of one gradient, by tensor; nothing before the first momentum."""
        if memory.get(BUFFER):
            return [buffer * (1 - self.momentum) for buffer in memory[BUFFER]]
        means = memory.get("exp_avg") or ()
        return [mean / (1 - self.momentum ** memory["step"]) for mean in means]

    def _momentum_of(self, gradient: Flat, memory: dict[str, Any]) -> float:
        if self.reach is None:
            return self.momentum
        return holding(gradient, memory, self.reach / self.rate, most=self.momentum, is_nesterov=self.is_nesterov)


@dataclass(frozen=True, kw_only=True)
class OuterStepSettings(Strategy):
    """The settings that strategies of outer steps have in common; their hooks are their own."""

    sync_every: int | str = 500
    """H: number of local steps between two means of a fragment, as in `local-sgd`."""
    fragments: int = 1
    """K: number of parts of the parameters that are averaged one after the other, H / K steps apart."""
    fragments_by: Literal["bytes", "layer"] = "bytes"
    """How fragments are formed: from tensors by their bytes, or from consecutive layers, which are not divided."""
    overlap: int = 0
    """Number of local steps taken while a mean is computed."""
    merge: float = 0.5
    """Weight of the worker's own parameters when it merges them with those of the outer step, if it took steps
    meanwhile. At a pause these steps count in full."""
    outer: Literal["adagrad", "adam", "sgd"] = "sgd"
    """Outer optimizer."""
    outer_rate: float | None = None
    """Learning rate of the outer optimizer. Unless it is set: 1 with fewer than 300 local steps, else 0.7 as published.
    Optimizers other than SGD have the published rate and momentum."""
    outer_momentum: float | None = None
    """Momentum of the outer optimizer; for Adam, beta1. Unless it is set: 0.3 with fewer than 10 local steps, 0.5 with
    fewer than 300, else 0.9 as published."""
    nesterov: bool = True
    """Whether the outer optimizer uses Nesterov momentum (SGD only)."""
    outer_gain: Literal["set", "measured"] = "set"
    """Whether the outer momentum is `outer_momentum` or is chosen in each outer step (SGD only).

    A chosen one makes the step move `outer_reach` times as far along the mean delta, with at most `outer_momentum`.
    """
    outer_reach: float = 1.5
    """Length of an outer step along the mean delta, in multiples of that delta, with `outer_gain="measured"`."""
    outer_device: Literal["own", "cpu"] = "own"
    """Place of the outer optimizer and its copy of the parameters: on the model's device, or in host memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_outer(self.outer_rate, self.outer_momentum)
        optimizer = self.outer_optimizer
        if optimizer.reach is not None:
            check_reach(self.outer, optimizer.reach, optimizer.rate)

    @property
    def outer_optimizer(self) -> OuterOptimizer:
        """The outer optimizer of these settings."""
        is_measured = self.outer_gain == "measured"
        usual = MEASURED if is_measured else usual_outer(self.outer, period_from(self.sync_every))
        rate, momentum = chosen_outer(self.outer_rate, self.outer_momentum, usual)
        reach = self.outer_reach if is_measured else None
        return OuterOptimizer(self.outer, rate, momentum, self.nesterov, self.outer_device, reach)


class Delta(NamedTuple):
    """The contribution of a worker to the mean of one fragment."""

    x: Flat
    weight: float
    left: Flat
    """The parameters of the fragment, where points lie."""


class OuterUnderWay(NamedTuple):
    """A mean of one fragment that is being formed."""

    number: int
    """The number of the fragment."""
    step: int
    """The step in which the mean began."""
    left: Flat
    """The parameters of the fragment as they were then."""
    mean: Work[Flat]


@dataclass(kw_only=True)
class OuterState(SynchronousPhase, WithPoint):
    """The local steps of one worker, its fragments, and the outer optimizers, which are equal on all workers."""

    fragments: tuple[Fragment, ...] = kept("drop")
    turn: int = kept("same", default=0)
    """The number of the fragment that is averaged next; means are in the same order on all workers."""
    newest: int = kept("drop", default=0)
    """The number of the fragment that was given last."""
    since: list[float] = kept("average", is_adapted=True)
    """Steps, or examples, since the last mean of each fragment."""
    under_way: list[OuterUnderWay] = kept("drop", default_factory=list)
    """The oldest first."""
    sent: dict[int, list[Any]] = kept("keyed", default_factory=dict)
    """By number of the fragment, the step and the weight of each contribution that is under way, and the parameters
    then. A checkpoint has no means under way; in a run of as many workers these begin again from here."""
    outer: OuterOptimizer = kept("drop")
    before: Flat | None = kept("same")
    """The point at which all workers began, or to which outer steps have led; None before the first local step."""
    memory: list[dict[str, Any]] = kept("same", is_adapted=True)
    """The state of the outer optimizer of each fragment."""

    def count_step(self, worker: Worker, period: Period) -> None:
        """Count the step that the worker has just made, for every fragment as well."""
        self.count(worker, period)
        amount = worker.examples if period.unit == "examples" else worker.weight
        self.since = [done + amount for done in self.since]

    def next_fragment(self, period: Period) -> tuple[Fragment, float]:
        """Give the next fragment, and count steps from 0; returns it and its weight, 1 after a whole period."""
        self.restart()
        self.newest, self.turn = self.turn, (self.turn + 1) % len(self.fragments)
        weight, self.since[self.newest] = self.since[self.newest] / period.count, 0.0
        return self.fragments[self.newest], weight

    def point_of(self, number: int) -> Flat:
        """A view of the common point in a fragment."""
        assert self.before is not None, "outer steps begin at a point"
        return among(self.before, self.fragments[number])

    def turned(self, x: Flat, number: int) -> Flat:
        """Convert the parameters of a fragment in `x` into their delta from the common point, or a delta back.

        Returns the numbers before, on the device of points. Deltas are exchanged, as small differences of means are
        rounded away.
        """
        point, parts = self.point_of(number), []
        for own, there in zip(x.segments(), point.parts, strict=False):
            parts.append(own.reshape(-1).to(there.device, copy=True))
            own.copy_(there.view_as(own).to(own.device) - own)
        return Flat(parts, point.layout)

    def give(self, worker: Worker, period: Period, *, moments: bool) -> Delta:
        """Return the delta of the next fragment from the common point."""
        fragment, weight = self.next_fragment(period)
        delta = worker.replica.read(moments=moments, only=fragment)
        return Delta(delta, weight, self.turned(delta, self.newest))

    def forget_steps(self) -> None:
        self.restart()
        self.since = [0.0] * len(self.fragments)

    def begin_outer_steps(self, worker: Worker, at: Flat) -> None:
        """Make local steps from the next one on, and outer steps from `at`, where all workers are."""
        self.turn_local(worker)
        self.before = self.outer.place(at)

    def restore(self, worker: Worker, at: Flat | None) -> None:
        """Go on from the consensus `at`; with None, from a checkpoint.

        After a checkpoint with another number of fragments the outer optimizers begin again.
        """
        if at is None:
            worker.means.step_alone(self.is_local)
            at = worker.parameters if self.is_local and self.before is None else self.before
            count = len(self.fragments)
            if not len(self.memory) == len(self.since) == count:
                self.memory, self.since, self.turn = [{} for _ in range(count)], [0.0] * count, 0
        self.before = None if at is None else self.outer.place(at)


def outer_state(x: Flat, count: int, outer: OuterOptimizer, *, by: By = "bytes", is_local: bool) -> OuterState:
    """The state at the start, of parameters `x` in `count` fragments; outer steps begin there if steps are local."""
    return OuterState(
        is_local=is_local,
        fragments=fragments_of(x.layout, count, by),
        since=[0.0] * count,
        outer=outer,
        before=outer.place(x) if is_local else None,
        memory=[{} for _ in range(count)],
    )


def usual_outer(kind: str, period: Period) -> tuple[float, float]:
    """Return the outer rate and momentum that a period has unless they are set."""
    steps = period.count if period.unit == "steps" else FEW  # others are not known beforehand
    return PUBLISHED if steps >= LONG or kind != "sgd" else SHORT if steps >= FEW else SHORTEST


def chosen_outer(rate: float | None, momentum: float | None, usual: tuple[float, float]) -> tuple[float, float]:
    """Return the outer rate and momentum that are set, and the `usual` ones in place of None."""
    return usual[0] if rate is None else rate, usual[1] if momentum is None else momentum


def check_outer(rate: float | None, momentum: float | None) -> None:
    """Raise `ConfigurationError` for a rate or a momentum that no outer optimizer can have."""
    if (rate is not None and not rate > 0) or (momentum is not None and not 0 <= momentum < 1):
        settings = f"outer_rate={rate}, outer_momentum={momentum}"
        raise ConfigurationError(f"{settings}: the rate must be above 0, and the momentum at least 0 and below 1")


def check_reach(kind: str, reach: float, rate: float) -> None:
    """Raise `ConfigurationError` for settings that no measured gain can keep."""
    if kind != "sgd":
        raise ConfigurationError(f'outer_gain="measured" chooses the momentum of SGD, and outer is {kind!r}; use "sgd"')
    if not rate <= reach < math.inf:
        raise ConfigurationError(f"outer_reach is {reach}; it must be a number from outer_rate, {rate}, on")


def merged(own: Flat, common: Flat, fragment: Fragment, share: float) -> Flat:
    """Return `own`, in which a fragment has the weight `share`, and `common`, on any device, the other part."""
    for own_part, theirs in zip(among(own, fragment).parts, common.parts, strict=True):
        own_part.copy_(own_part * share + theirs.to(own_part.device) * (1 - share) if share else theirs)
    return own


def moved(own: Flat, common: Flat, left: Flat, fragment: Fragment) -> Flat:
    """`own`, in which a fragment has moved to `common`, and on from there as far as it had from `left`."""
    for own_part, theirs, before in zip(among(own, fragment).parts, common.parts, left.parts, strict=True):
        own_part.copy_(edit_of(own_part, before, theirs).add_(theirs.to(own_part.device)))
    return own


class StreamingSettings(Protocol):
    """The settings of a strategy whose fragments take outer steps."""

    @property
    def period(self) -> Period:
        """H, of each fragment."""

    @property
    def fragments(self) -> int:
        """K."""

    @property
    def overlap(self) -> int:
        """Local steps that are made while a mean is formed."""

    @property
    def merge(self) -> float:
        """The weight of a worker's own parameters beside the result of an outer step."""

    @property
    def momentum(self) -> str:
        """The fate of the state of the inner optimizer at a mean: see `take_mean`."""


def stream(worker: Worker, settings: StreamingSettings) -> None:
    """After a local step: begin the mean of the next fragment if it is due, and take the means that are old enough.

    Streaming DiLoCo, Algorithm 2.
    """
    state: OuterState = worker.state
    state.count_step(worker, settings.period)
    if state.is_due(worker, settings.period / settings.fragments):
        x, weight, left = state.give(worker, settings.period, moments=settings.momentum == "average")
        state.under_way.append(OuterUnderWay(state.newest, worker.step, left, worker.means.of(x, weight=weight)))
        if settings.momentum != "average":
            state.sent[state.newest] = [worker.step, weight, list(left.parts)]
    take_means(worker, settings, age=settings.overlap)


def forget_means(state: Any) -> None:
    """Begin no mean again, since a codec would feed back what it has left out of it a second time."""
    if isinstance(state, OuterState):
        state.sent.clear()


def begin_means_again(worker: Worker) -> None:
    """Begin the means that were under way when a checkpoint was made, with the same bits."""
    state: OuterState = worker.state
    for number, (step, weight, parts) in sorted(state.sent.items(), key=lambda entry: entry[1][0]):
        x, point = worker.replica.read(only=state.fragments[number]), state.point_of(number)
        left = Flat([part.to(there.device) for part, there in zip(parts, point.parts, strict=True)], point.layout)
        for place, own, there in zip(x.segments(), left.parts, point.parts, strict=False):
            place.copy_((there - own).view_as(place))
        state.under_way.append(OuterUnderWay(number, step, left, worker.means.of(x, weight=weight)))


def take_means(worker: Worker, settings: StreamingSettings, *, age: int = 0, at_pause: bool = False) -> None:
    """Wait for the means that began `age` steps ago or earlier, in order, and make the outer step of each.

    A worker `at_pause` keeps in full the steps that it has made meanwhile; else they count `settings.merge`.
    """
    state: OuterState = worker.state
    while state.under_way and worker.step - state.under_way[0].step >= age:
        number, _, left, mean = state.under_way.pop(0)
        state.sent.pop(number, None)
        outer_step(worker, settings, number, mean.wait(), left if at_pause else None)


def outer_step(worker: Worker, settings: StreamingSettings, number: int, mean: Flat, left: Flat | None = None) -> None:
    """Make the outer step of fragment `number` on the mean of all deltas, and go on from its result.

    `left` are the parameters of the fragment as the mean began, if later steps count in full.
    """
    state, fragment = worker.state, worker.state.fragments[number]
    if not worker.means.share:
        return  # no worker has made a step since the fragment's last mean
    own, x = worker.parameters, state.point_of(number)
    gradient = state.turned(mean, number)
    take_mean(worker, mean, settings.momentum, only=fragment)
    state.outer.step(worker, x, gradient, state.memory[number], number)
    share = settings.merge if state.since[number] else 0.0
    worker.parameters = merged(own, x, fragment, share) if left is None else moved(own, x, left, fragment)


@dataclass(frozen=True)
class Measured:
    """Measures of one outer step, whatever the optimizer; None if an outer gradient is 0 or not finite, and of rho in
    the first step.

    With d the outer gradient, s the outer step and lr the outer rate, rho is the cosine of d and the one before. The
    gain <s, d> / (lr <d, d>) is the length of s along d in plain steps. The transverse part,
    |s - (<s, d> / <d, d>) d| / (lr |d|), is momentum of former outer gradients that d does not share. `holding` chooses
    the momentum by the gain.
    """

    norm: float
    """The norm of the outer gradient."""
    rho: float | None
    smoothed_rho: float | None
    gain: float | None
    transverse: float | None

    def as_row(self) -> dict[str, Any]:
        """Return the fields of `records.rows.Outer`."""
        return asdict(self)


Pair = tuple[Sequence[Tensor], Sequence[Tensor]]
"""Two vectors, by part."""


def dots(*pairs: Pair) -> list[float]:
    """Return the inner product of each pair. Sums of pieces are added in double precision, so that their order hardly
    matters. A GPU is waited for once."""
    totals, every = [0.0] * len(pairs), list[list[Tensor]]()
    for number, (xs, ys) in enumerate(pairs):
        every.append([])
        for x, y in zip(xs, ys, strict=True):
            kind = torch.float64 if torch.float64 in (_real(x).dtype, _real(y).dtype) else torch.float32
            pieces = zip(_real(x).reshape(-1).split(PIECE), _real(y).reshape(-1).split(PIECE), strict=True)
            sums = [torch.dot(x_piece.to(kind), y_piece.to(kind)) for x_piece, y_piece in pieces]
            if sums and sums[0].device.type != "cpu":
                every[number] += sums
            else:
                totals[number] += float(torch.stack(sums).double().sum())
    if any(every):
        values = torch.tensor(values_of([x for sums in every for x in sums]), dtype=torch.float64)
        for number, some in enumerate(values.split([len(sums) for sums in every])):
            totals[number] += float(some.sum())
    return totals


def of_optimizer(memory: dict[str, Any]) -> dict[str, Any]:
    """Return the part of `memory` that is the outer optimizer's own."""
    return {name: value for name, value in memory.items() if name not in (NEWEST, NORM, SMOOTHED)}


def correlated(
    gradient: Flat, square: float, product: float | None, memory: dict[str, Any]
) -> tuple[float | None, float | None]:
    """rho and its smoothed value. `square` is <d, d>, and `product` that of d and the one before, if there is one;
    `memory` has `gradient` for the newest from now on."""
    rho = None if product is None else _ratio(product, math.sqrt(square) * memory[NORM])
    memory[NEWEST] = [_real(part).to(torch.bfloat16, copy=True) for part in gradient.parts]
    memory[NORM] = math.sqrt(square)
    smoothed: float | None = memory.get(SMOOTHED)
    if rho is not None:
        rho = max(-1.0, min(1.0, rho))
        smoothed = rho if smoothed is None else (1 - SHARE) * smoothed + SHARE * rho
        memory[SMOOTHED] = smoothed
    return rho, smoothed


def measured(before: Flat, after: Flat, gradient: Flat, memory: dict[str, Any], rate: float) -> Measured:
    """Measure the outer step from `before`, which is written over, to `after` on `gradient`. Cost: some nine passes,
    as much as two steps of an optimizer."""
    for old, new in zip(before.parts, after.parts, strict=True):
        old.sub_(new)  # the step
    pairs: list[Pair] = [(gradient.parts, gradient.parts), (before.parts, gradient.parts)]
    if NEWEST in memory:
        newest = [old.to(new.device) for old, new in zip(memory[NEWEST], gradient.parts, strict=True)]
        pairs.append((gradient.parts, newest))
    square, along, *products = dots(*pairs)
    rho, smoothed = correlated(gradient, square, products[0] if products else None, memory)
    norm, share = math.sqrt(square), _ratio(along, square)
    if share is None:
        return Measured(norm, rho, smoothed, None, None)
    before.add_(gradient, alpha=-share)
    transverse = math.sqrt(*dots((before.parts, before.parts)))
    return Measured(norm, rho, smoothed, share / rate, _ratio(transverse, rate * norm))


def holding(gradient: Flat, memory: dict[str, Any], gain: float, *, most: float, is_nesterov: bool) -> float:
    """The momentum at which an SGD step on `gradient` has the `gain`, or comes closest; above 0, and at most `most`.

    With b the momentum buffer and a = <b, d> / <d, d> the gain at momentum m is 1 + m a, and 1 + m (1 + m a) with
    Nesterov's. Before there is a buffer it is 1, and 1 + m. Rounded to `GRAIN`, so that workers which sum up in another
    order have the same.
    """
    buffers = memory.get(BUFFER)
    pairs: list[Pair] = [(gradient.parts, gradient.parts)]
    if buffers:
        before = [old.to(new.device) for old, new in zip(buffers, gradient.parts, strict=True)]
        pairs.append((before, gradient.parts))
    square, *products = dots(*pairs)
    share = _ratio(products[0], square) if products else 0.0
    if share is None:
        return most
    momentum = _root(share, gain - 1) if is_nesterov else (gain - 1) / share if share > 0 else 0.0
    return max(GRAIN, min(most, round(momentum / GRAIN) * GRAIN))


def _root(a: float, wanted: float) -> float:
    """The least m with m + a m² = `wanted`, or where that is greatest."""
    under = max(0.0, 1 + 4 * a * wanted)
    return 2 * wanted / (1 + math.sqrt(under)) if under else -1 / (2 * a)


def _real(x: Tensor) -> Tensor:
    """Complex numbers as pairs."""
    return torch.view_as_real(x) if x.is_complex() else x


def _ratio(above: float, below: float) -> float | None:
    share = above / below if below > 0 else math.nan
    return share if math.isfinite(share) else None
