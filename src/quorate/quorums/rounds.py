"""Rounds as a strategy sees them through its worker: gradients go in, means and their options come out.

What rounds need of vectors and gradients.

Rounds of fragments as one worker hands them in and takes them: see `rounds.fragments`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from torch import Tensor

from quorate.checkpoint.saving import Saving
from quorate.core.codec import elected_
from quorate.core.contracts import Wire, Work
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.core.means import Mean, Standing
from quorate.core.measured import Measured, WorkerMeasures
from quorate.core.vectors import Flat, Layout, pack
from quorate.means.headers import energies_in, header_of, put_bad, used_in
from quorate.observe.step_times import StepTimer, Timed
from quorate.quorums.in_rounds import InRounds
from quorate.quorums.kept_rounds import kept_of, momentum_kept, restore, restore_momentum
from quorate.quorums.round_watch import RoundWatch
from quorate.quorums.whole_replica import WholeReplica
from quorate.records.tape import OptimizerTape
from quorate.replica.options_by_place import OptionsByPlace
from quorate.replica.replica import Replica
from quorate.replica.shared_step import SharedOptions
from quorate.replica.worker_momentum import WorkerMomentum
from quorate.rounds.coding import Coding
from quorate.rounds.fragments import Fragments
from quorate.rounds.log import Round
from quorate.rounds.of_worker import rounds_of
from quorate.rounds.terms import Agreed
from quorate.wire.survivors import DeathTolerance


class WorkerRounds:
    """Implements `core.means.WorkerRounds`: the rounds of one optimizer's worker."""

    def __init__(
        self,
        replica: Replica,
        wire: Wire,
        timer: StepTimer,
        agreed: Agreed,
        worker: InRounds,
        *,
        saving: Saving,
        watch: RoundWatch,
        tolerance: DeathTolerance,
        clip_norm: float | None = None,
        measures: bool = False,
        counts_ended: bool = False,
        fragments: Sequence[Layout] = (),
        tape: OptimizerTape | None = None,
        coding: Coding | None = None,
        row: Wire | None = None,
        copies: Callable[[Tensor], int] = lambda p: 1,
    ) -> None:
        """`row`: the workers of this replica, where it is in pieces. `counts_ended`: whether rounds are divided by the
        workers that have ended, too. `fragments`: see `hand_in`."""
        if clip_norm is not None and not 0 < clip_norm < math.inf:
            raise ConfigurationError(f"clip_norm is {clip_norm!r}; it must be a number above 0, or None")
        self._replica, self._wire, self._timer, self._worker = replica, wire, timer, worker
        self._agreed, self._clip_norm, self._measures, self._counts_ended = agreed, clip_norm, measures, counts_ended
        self._saving, self.watch, self._tolerance = saving, watch, tolerance
        self.contributors = wire.size
        """How many workers gave something to the newest round."""
        self._has_called, self._mean_held, self._mean = False, 0, cast("Flat | None", None)
        self._options, self._begun, self._whole = OptionsByPlace(), dict[int, float](), WholeReplica(row, copies)
        self._fragments = Fragments(tuple(fragments)) if fragments else None
        of = wire.channel("rounds"), agreed, replica.layout.on_cpu, self, on_host(fragments) if fragments else None
        self.rounds = rounds_of(*of, watch, tape, coding, row)
        self.standing: Standing = self.rounds.standing
        self._votes = coding is not None and coding.votes

    def lay_out(self, layout: Layout) -> None:
        """Vectors of rounds are laid out so from here on; nothing is under way, and all workers say so here."""
        self._mean = None
        self.rounds.lay_out(layout.on_cpu)

    def lay_out_fragments(self, fragments: Sequence[Layout]) -> None:
        """Likewise."""
        self._fragments = Fragments(tuple(fragments))
        self.rounds.lay_out_fragments(on_host(fragments))

    def contribute(self, vector: Flat | None = None, *, waits: bool = True, weight: float | None = None) -> Work[int]:
        self._timer.arrived()
        counts = self._worker.share(weight)
        with self._timer.spending("encode"):
            given = self._gradient(counts) if vector is None else self._packed(vector, counts)
            if vector is None and given is not None:
                self.watch.measures(given, counts)
            self._begun[self.version] = self.progress
            own = self._replica.options.to_give()
            options, place = self._options.of(own, self._worker.step(), self.progress, self._worker.scheduled())
            self.watch.is_about_to_give()
            about: dict[str, Any] = {"weight": counts, "step": place, "options": options, "waits": waits}
            if self._measures and given is not None:
                norm, how = self._norm(given), {"is_scaled": self._replica.is_scaled}
                about["measures"] = measures_of(self._timer, norm, has_called=self._has_called, **how)
            if given is not None and (signed := self.watch.take_words()):
                about["measures"] = with_words(about.get("measures"), signed)
            work = self.rounds.contribute(given, **about)
        self._has_called = waits and work.is_called_for
        return Timed(work, self._timer)

    def hand_in(
        self,
        vectors: Sequence[Flat],
        *,
        fresh: float,
        told: Any = None,
        waits: bool = False,
        slack: float | None = None,
        began: int | None = None,
    ) -> Work[int]:
        self._timer.arrived()
        with self._timer.spending("encode"):
            for vector in vectors:
                self.watch.gives(vector, vector.segments())
            self.watch.is_about_to_give()
            about: dict[str, Any] = {"fresh": fresh, "step": float(self._worker.step()), "measures": told}
            about |= {"began": began}
            work = self.rounds.hand_in([x.on_cpu() for x in vectors], waits=waits, slack=slack, **about)
        return Timed(work, self._timer)

    def hand_in_last(
        self, vectors: Sequence[Flat], *, fresh: float, told: Any = None, began: int | None = None
    ) -> Work[int] | None:
        for vector in vectors:
            self.watch.gives(vector, vector.segments())
        about: dict[str, Any] = {"fresh": fresh, "step": float(self._worker.step()), "measures": told}
        about |= {"began": began}
        return self.rounds.hand_in_last([x.on_cpu() for x in vectors], **about)

    def agree(self, *, why: str = "", **settings: Any) -> None:
        self.rounds.agree(why=why, **settings)

    def _packed(self, vector: Flat, weight: float) -> Flat:
        """Its own memory, as rounds take it, with a header."""
        packed = vector.times(weight / self._wire.size, self.rounds.blank())
        packed.header.copy_(header_of(weight, [True] * len(self._replica.trained), packed.layout))
        self.watch.gives(packed, packed.segments())
        return packed

    def _gradient(self, weight: float) -> Flat | None:
        """This worker's gradient as it stands, unscaled; None where it has none, or a scaler has found it infinite."""
        own: dict[str, Any] = self._replica.optimizer.__dict__
        grads, momentum = [x if x is None else local(x) for x in self._replica.gradients], self._replica.momentum
        can_step, is_finite = self._whole.all_are(
            not float(own["found_inf"]) if "found_inf" in own else True,
            (momentum is None and self._whole.is_here) or self.watch.sees_finite(that_are(grads)),
        )
        if not can_step or all(grad is None for grad in grads):
            return None
        scale = own.get("grad_scale")
        vector = self.rounds.blank()
        if momentum is not None and is_finite:
            return self._ahead(momentum, grads if scale is None else times(grads, 1 / float(scale)), weight, vector)
        share = weight / self._wire.size
        pack(grads, vector, scale=share if scale is None else share / float(scale))
        vector.header.copy_(header_of(weight, [grad is not None for grad in grads], vector.layout))
        self.watch.gives(vector, grads)
        if not is_finite and not self._whole.is_here:
            put_bad(vector.header, self._wire.rank, self._wire.max_size)
        return vector

    def _norm(self, vector: Flat) -> float:
        return self._whole.norm(vector.segments(), self._replica.trained)

    def _ahead(self, momentum: WorkerMomentum, grads: list[Tensor | None], weight: float, vector: Flat) -> Flat:
        """What this worker's own momentum makes of its gradient."""
        if self._clip_norm is not None:
            norm = self._whole.norm(grads, self._replica.trained)
            grads = times(grads, self._clip_norm / (norm + 1e-6)) if norm > self._clip_norm else grads
        given, energies = momentum.ahead(self._replica.trained, grads, weight)
        pack(given, vector, scale=1 / self._wire.size)
        vector.header.copy_(header_of(weight, [energy * weight for energy in energies], vector.layout))
        return vector

    def completed(self, *, up_to: int | None = None, keeps_at_once: bool = False) -> Iterator[Mean]:
        for one in self.rounds.completed(in_step=not keeps_at_once, up_to=math.inf if up_to is None else up_to):
            ready = self._ready(one)
            if ready is not None:
                yield ready
                self.watch.applied(ready.number)

    def goes_away(self) -> None:
        """See `Rounds.goes_away`."""
        self.rounds.goes_away()

    def is_back(self) -> None:
        """Be where the others are by now."""
        for one in self.rounds.is_back():
            self._apply(one)

    def enter(self, *, is_further: bool = False) -> None:
        """Join those that train: see `Rounds.enter`."""
        for one in self.rounds.enter(is_further=is_further):
            self._apply(one)

    def settle(self, *, ended: bool) -> None:
        """Wait until no worker steps, applying what comes. All replicas are equal then, and nothing is pending."""
        self.rounds.settle(ended=ended, apply=self._apply)
        self.watch.rows.look()

    def _apply(self, one: Round) -> None:
        ready = self._ready(one)
        if ready is not None:
            self._worker.apply(ready)
            self.watch.applied(ready.number)

    def _ready(self, one: Round) -> Mean | None:
        wire, self.contributors = self._wire, len(one.contributors)
        self.watch.comes(one)
        if one.sum is None or one.weight <= 0:
            return None  # applied by nobody
        if self._fragments is not None:
            return taken_apart(one, self._fragments, self._wire.rank, self.watch)
        if self.watch.leaves_out(one, one.sum, is_scaled=self._replica.is_scaled):
            return None
        momentum, options = self._replica.momentum, one.options
        world = one.alive if self._counts_ended else one.live
        divisor = world if self._agreed.divide_by == "world" else one.weight
        if momentum is not None:
            share = one.weight / divisor
            divisor = divisor if momentum.kind == "sgd" else one.weight
            options = SharedOptions(options, share, energies_in(one.sum, len(self._replica.trained)))
        factor = wire.size / divisor
        self._replica.used = used_in(one.sum, len(self._replica.trained))
        of_sum = self._norm(one.sum) if self._clip_norm is not None or self._measures else math.nan
        norm = factor * of_sum
        if self._clip_norm is not None and momentum is None and norm > self._clip_norm:
            factor *= self._clip_norm / (norm + 1e-6)
        mine = sum(count for _, count in one.contributors.get(wire.rank, ()))
        self._learn_delay(one)
        smoothing = 1.0 if momentum is None else momentum.smoothing
        self.watch.measured(one, one.sum, smoothing)
        measured = measured_in(one, of_sum**2, smoothing) if self._measures else None
        mean = one.sum.times(factor, self._own())
        if self._votes:
            for part in mean.layout.coded:
                elected_(mean.parts[part])
        return Mean(mean=mean, mine=mine, options=options, measured=measured, number=one.number, norm=norm)

    def _own(self) -> Flat:
        """Where the optimizer may write as it likes: the round itself is the same memory for all."""
        if self._mean is None or self._mean.holders() > self._mean_held:
            self._mean = Flat.empty(self._replica.layout)
            self._mean.segments()
            self._mean_held = self._mean.holders()
        return self._mean

    def _learn_delay(self, one: Round) -> None:
        momentum = self._replica.momentum
        for staleness, _ in one.contributors.get(self._wire.rank, ()):
            version = one.number - 1 - staleness
            if momentum is not None and version in self._begun:
                momentum.was_late(self.progress - self._begun[version])
            self._begun = {other: at for other, at in self._begun.items() if other >= version}

    @property
    def waits_for_all(self) -> bool:
        """Whether every round waits for all workers, so that all come to each step at the same round."""
        return self._agreed.quorum == self._agreed.callers

    # -- checkpoint.participants.KeptRounds

    @property
    def agreed(self) -> Agreed:
        return self.rounds.agreed

    @property
    def version(self) -> int:
        return self.rounds.version

    @property
    def progress(self) -> float:
        """Synchronous steps that the training has made, as far as this replica goes."""
        return self.rounds.progress

    def ask_for_save(self, request: int) -> None:
        self.rounds.ask_for_save(request)

    def kept(self) -> dict[str, Any]:
        return {**kept_of(self.rounds, self._replica, self._wire.size), **momentum_kept(self._replica)}

    def restore(self, olds: Sequence[dict[str, Any]]) -> list[str]:
        restore_momentum(self._replica, olds, self._wire.rank, self._wire.size)
        return restore(self.rounds, self._replica, olds, self._wire.rank, self._wire.size)

    # -- rounds.rounds.Replica

    def reached(self, number: int, term: int, *, in_step: bool) -> bool:
        return self._saving.reached(number, term, in_step=in_step)

    def boundary(self) -> None:
        self._saving.boundary()

    def met(self, number: int, joined: Sequence[int]) -> None:
        era = f"{self._timer.name} {number}"  # the rounds of another optimizer may have settled in the same number
        self._tolerance.go_on_with([*range(self._wire.size), *joined], era, self._agreed.pieces)

    def capture(self, *, is_whole: bool) -> tuple[dict[str, Any], Sequence[Tensor]]:
        header, tensors = self._worker.copies.capture(is_whole=is_whole)
        return {**header, "rows": self.watch.rows.held}, tensors

    def adopt(self, header: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        self._worker.copies.adopt(header, tensors)
        self.watch.rows.jumped(header["rows"])


def that_are(grads: Sequence[Tensor | None]) -> list[Tensor]:
    """Those that there are."""
    return [x for x in grads if x is not None]


def times(grads: Sequence[Tensor | None], factor: float) -> list[Tensor | None]:
    """Each of them `factor` times."""
    return [None if x is None else x * factor for x in grads]


def measures_of(timer: StepTimer, norm: float, *, has_called: bool, is_scaled: bool) -> list[float | None]:
    """What goes with a contribution of that norm: see `core.measured.WorkerMeasures`."""
    waited = timer.waited_before if has_called else None
    return WorkerMeasures(timer.work, waited, None if is_scaled else timer.loss, norm**2).values


def with_words(values: list[float | None] | None, signed: Sequence[Any]) -> Any:
    """One word that goes with a contribution: the measured values, and what `LocalChanges` has signed."""
    return {"signed": signed, "measured": values} if signed else values


def _values_in(word: Any) -> Sequence[Any]:
    values: Sequence[Any] = word["measured"] if isinstance(word, dict) else word
    return values


def measured_in(one: Round, square: float, smoothing: float) -> Measured:
    """What workers told with round `one`, whose sum has this square norm."""
    gradients = sum(count for given in one.contributors.values() for _, count in given)
    measures = [(rank, WorkerMeasures(*_values_in(word))) for rank, own in one.measures.items() for word in own]
    return Measured(one.number, one.quorum, gradients, measures, square, smoothing)


def on_host(fragments: Sequence[Layout]) -> Fragments:
    """As rounds have them, which are formed on the CPU."""
    return Fragments(tuple(one.on_cpu for one in fragments))


def taken_apart(one: Round, fragments: Fragments, rank: int, watch: RoundWatch) -> Mean | None:
    """The sums of round `one`, which are given to the strategy as they are; None where they are to be left out."""
    assert one.sum is not None
    parts = fragments.split(one.sum) if one.settles else [one.sum]
    bad = [watch.leaves_out(one, part, is_scaled=False) for part in parts]
    if any(bad):
        return None
    first = 0 if one.settles else fragments.number(one.number)
    return Mean(
        mean=one.sum,
        mine=sum(count for _, count in one.contributors.get(rank, ())),
        number=one.number,
        alive=one.alive,
        missing=one.missing,
        told=one.measures,
        fragments={number: x.in_layout(fragments.layouts[number]) for number, x in enumerate(parts, first)},
    )
