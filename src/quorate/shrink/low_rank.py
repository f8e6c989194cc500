"""Low rank from some step of the training on: layers in two factors, with equal factors and carried momentum.

Before the switch the training is as usual: factors from the first step learn less. At the switch all workers pause,
their replicas become equal, and each weight W (m rows, n columns) is replaced by B A, from its SVD. The SVDs are
assigned to workers, and each worker sends its factors to the others.

Sources: Wang, Agarwal, Papailiopoulos, "Pufferfish", MLSys 2021; Wang, Agarwal, U-chupala, Tanaka, Xing,
Papailiopoulos, "Cuttlefish", MLSys 2023 (the stable rank). The momentum, which both begin again, is carried over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from quorate.checkpoint.participants import Distributed
from quorate.core.callable_module import let_call
from quorate.core.contracts import Message
from quorate.core.errors import ConfigurationError
from quorate.core.fields import Fields
from quorate.core.telling import tell
from quorate.means.equal_replicas import copy_tensors
from quorate.observe.step_observer import NEVER, Observers, Phase, StepObserver
from quorate.replica import factors
from quorate.replica.forms import forms_in, give_forms
from quorate.shrink.guard import Evaluate, Guard
from quorate.shrink.weights import Weight, check_patterns, entry_of, loop_of, matching, weights_in
from quorate.train.loop import Loop
from quorate.wire import current
from quorate.wire.current import Place
from quorate.wire.survivors import DeathTolerance

SETTLED = 0.02
"""The relative change of the stable rank of a weight, between two measurements, below which it has settled."""
_LEAST_SHARE = 1 / 5
"""The least rank by the stable rank, as a share of the full one: that of Cuttlefish."""


@dataclass(frozen=True, slots=True)
class FactorNames(Fields):
    """The message of a worker with the factors that it has computed, two tensors for each weight."""

    names: Sequence[str]


class LowRank(StepObserver):
    """The switch of one optimizer's model; `ranks` has the rank of each weight in two factors, by name, after it."""

    phase = Phase.RECORD

    def __init__(
        self,
        place: Place,
        entry: Distributed,
        *,
        rank: int | None,
        share: float | None,
        layers: Sequence[str] | None,
        at: int | Literal["settled"],
        every: int,
        guard: Guard,
    ) -> None:
        self.optimizer, self._place, self._entry = entry.name, place, entry
        self._rank, self._share, self._layers, self._every, self._guard = rank, share, layers, every, guard
        self._settles = at == "settled"
        self.ranks: dict[str, int] = {}
        self.is_undone = False
        """Whether the loss had left the band of `guard`, so that the weights are as before."""
        self._first: dict[str, float] = {}
        self._before: dict[str, float] = {}
        """Stable ranks at the first and at the newest measurement."""
        check_patterns(self._weights(), layers)
        if not self._chosen() and all(weight.is_plain for weight in self._weights()):
            raise ConfigurationError(
                "low_rank() would make no layer smaller without the first and the last one; pass a smaller rank, or "
                "name layers in `layers`"
            )
        if self._settles:
            self._first = self._before = {
                weight.name: factors.stable_rank(weight.parameter) for weight in self._chosen()
            }
        worker = entry.worker
        is_together = worker is not None and not (worker.differs or worker.has_rounds)
        self._by_updates = is_together and not self._settles and place.wire.max_size > place.wire.size
        """Whether updates are counted, which are as many on a worker that joins, and not the steps of this worker."""
        self._at = every if at == "settled" else at
        self.due = 0 if self._by_updates else self._at

    def begin(self) -> None:
        """Make the switch now if it is due, or wait for it."""
        if not self._settles and self._made >= self._at:
            self._reached()
        elif loop_of(self._place, self._entry) is None:
            self._entry.optimizer.register_step_post_hook(lambda *_: self._stepped_alone())
        else:
            self._place.context(Observers).add(self)

    @property
    def _made(self) -> int:
        worker = self._entry.worker
        return worker.updates if self._by_updates and worker is not None else self._entry.step

    def _stepped_alone(self) -> None:
        if self._entry.step >= self.due:
            self._reached()

    def step_ended(self) -> None:
        loop = loop_of(self._place, self._entry)
        if not self._by_updates or loop is None or (self._made >= self._at and not loop.worker.means.some_away):
            self._reached()  # workers that have paused apply these updates as well, and switch in their next step

    def _reached(self) -> None:
        loop = loop_of(self._place, self._entry)
        self.due = self._entry.step + self._every if self._settles else NEVER
        if not self._chosen():  # a checkpoint has brought the factors
            self.due = NEVER
            self.ranks = {name: form["rank"] for name, form in self._forms().items() if "rank" in form}
        elif loop is None:
            self._switch_if_settled(None)
        else:
            loop.relayout.replace(lambda: self._switch_if_settled(loop), "low_rank() replaces its layers")

    def _forms(self) -> Mapping[str, Mapping[str, int]]:
        return forms_in(self._entry.model.state_dict())

    # -- the choice

    def _weights(self) -> list[Weight]:
        return list(weights_in(self._entry.model, factors.weights_of, self._entry.parameters))

    def _chosen(self) -> list[Weight]:
        """Return the weights to be replaced, without those that are in two factors already."""
        plain = [weight for weight in self._weights() if weight.is_plain]
        return [w for w in matching(plain, self._layers) if self._layers is not None or self._becomes_smaller(w)]

    def _becomes_smaller(self, weight: Weight) -> bool:
        p = weight.parameter
        return weight.is_inside and factors.size_at(p, self._rank_for(p)) < p.numel()

    def _rank_for(self, weight: Parameter, growth: float | None = None) -> int:
        """Return the rank: as it was chosen, or the full one times the `growth` of the stable rank since the start."""
        full = factors.full_rank(weight)
        if self._rank is not None:
            return min(self._rank, full)
        share = self._share if self._share is not None else _LEAST_SHARE
        if self._share is None and growth is not None:
            share = min(1.0, max(_LEAST_SHARE, growth))
        return max(1, math.ceil(share * full - 1e-9))

    # -- the switch, while all workers are paused with equal replicas

    def _switch_if_settled(self, loop: Loop | None) -> bool:
        chosen = self._chosen()
        growth: dict[str, float] = {}
        if self._settles:
            now = {weight.name: factors.stable_rank(weight.parameter) for weight in chosen}
            before, self._before = self._before, now
            if any(abs(now[name] - before.get(name, math.inf)) > SETTLED * now[name] for name in now):
                return False
            growth = {name: now[name] / self._first[name] for name in now if self._first.get(name)}
        self.due = NEVER
        ranks = {w.name: self._rank_for(w.parameter, growth.get(w.name)) for w in chosen}
        change = partial(self._switch, loop, ranks, chosen)
        self.is_undone = not self._guard.stays(self._place, self._entry, loop, change, "low rank")
        self.ranks = {} if self.is_undone else ranks
        return not self.is_undone

    def _switch(self, loop: Loop | None, ranks: Mapping[str, int], weights: Sequence[Weight]) -> None:
        pairs = _factors(self._place, loop, {w.name: w.parameter for w in weights}, ranks)
        momentum = None if loop is None else loop.replica.momentum
        is_known, before, after = True, 0, 0
        for weight in weights:
            before += weight.parameter.numel()
            old, a, b = factors.factor(weight.module, weight.key, pairs[weight.name])
            is_known &= factors.step_on_factors(self._entry.optimizer, old, a, b, momentum)
            after += a.numel() + b.numel()
        if self._place.wire.rank == self._place.wire.alive[0]:
            kept = "" if is_known else "; the optimizer's state of them begins again, as its form is unknown"
            tell(
                f"quorate: low rank after step {self._entry.step}: {len(weights)} weights with {after:,} numbers in "
                f"place of {before:,}{kept}\n"
            )


def low_rank(
    optimizer: Optimizer,
    *,
    rank: int | None = None,
    share: float | None = None,
    layers: Sequence[str] | None = None,
    at: int | Literal["settled"] | None = None,
    every: int = 100,
    evaluate: Evaluate | None = None,
    guard: float | None = None,
) -> LowRank:
    """Replace layers of the model by layers in two factors, W = B A, on all workers after the same step.

    Linear layers, convolutions, LSTM and GRU layers keep their names; `weight` becomes `weight_a` and `weight_b`. All
    workers pause, their replicas become equal, and each worker computes some of the SVDs. The optimizer's momentum and
    mean squares are carried over to the factors; vectors that the strategy keeps, such as an outer momentum, begin
    again. Checkpoints and joining workers need no further call: `quorate.load` and `quorate.distribute` see the ranks.

    Args:
        optimizer: The result of `quorate.distribute`.
        rank: The rank r of every factored weight, at most its full rank.
        share: The rank as a share of the full rank min(m, n), above 0 and at most 1; 0.25 is that of Pufferfish.
        layers: Names of layers or weights, or patterns of them ("encoder.*"). None: all that become smaller, without
            the first and the last weight of the model.
        at: The number of this worker's step after which the switch is made; where workers may join, of the update, if
            all make it together. None: now; all workers call it after the same step. "settled": as soon as the stable
            rank of each weight, ||W||_F^2 / s^2 with its largest singular value s, changes by less than 2 % between two
            measurements. Then `rank` and `share` may be left out: the rank is the full one times the growth of the
            stable rank since this call, and at least a fifth.
        every: The number of steps between two measurements of the stable rank; each pauses all workers.
        evaluate: Returns a loss of the model, which is averaged over the workers.
        guard: The largest relative rise of that loss at the switch. A switch that exceeds it is undone.

    Returns:
        An object with the `ranks` by the name of the weight; they are empty until the switch, and where it `is_undone`.

    Raises:
        ConfigurationError: The optimizer is not distributed, its model is in shards or in torch's DDP, a setting is
            wrong, or no layer would become smaller. Also if a worker ends or pauses without the switch.
        Diverged: The parameters of workers are not equal after the switch.

    Cost: a pause of all workers, an SVD of each weight on one worker, and r (m + n) numbers from it to the others.
    Afterwards r (m + n) numbers are trained, exchanged and multiplied in place of m n.

    Example:
        >>> optimizer = quorate.distribute(optimizer, model)
        >>> quorate.shrink.low_rank(optimizer, share=0.25, layers=["weight"]).ranks
        {'weight': 1}
    """
    place = current.here()
    entry = entry_of(place, optimizer, "low_rank()")
    _check(rank, share, at, every)
    chosen: dict[str, Any] = {"rank": rank, "share": share, "layers": layers, "guard": Guard(evaluate, guard)}
    switch = LowRank(place, entry, at=0 if at is None else at, every=every, **chosen)
    switch.begin()
    return switch


def shape_like(model: Module, state: Mapping[str, Tensor]) -> list[str]:
    """Give the weights of `model` the forms that they have in a saved `state`, and return the names of those changed.

    Args:
        model: A model as it was built, for `model.load_state_dict(state)` afterwards.
        state: The tensors of a model after `low_rank` or `cluster`, by name.

    Raises:
        CheckpointError: A layer of `model` cannot have the form of `state`.

    Example:
        >>> quorate.shrink.shape_like(model, model.state_dict())
        []
    """
    return give_forms(model, forms_in(state))


def _check(rank: object, share: object, at: object, every: object) -> None:
    if (rank is None) == (share is None) and not (at == "settled" and rank is None):
        raise ConfigurationError('low_rank() takes either rank or share; with at="settled" both may be left out')
    if rank is not None and not _is_count(rank, 1):
        raise ConfigurationError(f"rank is a whole number of at least 1, not {rank!r}")
    if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1):
        raise ConfigurationError(f"share is a number above 0 and at most 1, not {share!r}")
    if not (at is None or at == "settled" or _is_count(at, 0)):
        raise ConfigurationError(f'at is a number of steps, "settled" or None, not {at!r}')
    if not _is_count(every, 1):
        raise ConfigurationError(f"every is a whole number of steps of at least 1, not {every!r}")


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _factors(
    place: Place, loop: Loop | None, weights: Mapping[str, Parameter], ranks: Mapping[str, int]
) -> dict[str, factors.Pair]:
    """Return the factors of each weight, the same bits on all workers; each worker computes some of them."""
    if loop is None:
        return {name: factors.factored(weight, ranks[name]) for name, weight in weights.items()}
    wire, group = loop.worker.wire, place.context(DeathTolerance).surviving_replicas
    sizes = {name: float(weight.numel()) * factors.full_rank(weight) for name, weight in weights.items()}
    pairs: dict[str, factors.Pair] = {}
    while missing := [name for name in weights if name not in pairs]:
        members = range(wire.size) if group is None else sorted(group.members - wire.dead)
        owners = factors.assigned({name: sizes[name] for name in missing}, list(members))
        own = {name: factors.factored(weights[name], ranks[name]) for name in missing if owners[name] == wire.rank}
        if group is None:
            for root in members:
                sent = [name for name in missing if owners[name] == root]
                for name in sent:
                    pairs[name] = own.get(name) or factors.empty_factors(weights[name], ranks[name])
                copy_tensors([x for name in sent for x in pairs[name]], wire, root)
            continue
        message = Message(tuple(x for pair in own.values() for x in pair), FactorNames(list(own)).header())
        for answer in group.gather(message, "factors").wait().values():  # of a dead worker there is none
            for place_of, name in enumerate(FactorNames.read(answer.header).names):
                a, b = answer.tensors[2 * place_of : 2 * place_of + 2]
                pairs[name] = a.to(weights[name].device, copy=True), b.to(weights[name].device, copy=True)
    return pairs


let_call(__name__, __name__, "low_rank")  # `quorate.shrink.low_rank` is this module and the function
