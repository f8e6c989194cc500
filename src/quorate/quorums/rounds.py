"""Rounds as a strategy sees them through its worker: it contributes gradients and takes means with their options.

In rounds of fragments (see `rounds.fragments`) it contributes one vector for each fragment instead.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from quorate.checkpoint.saving import Saving
from quorate.core.codec import elected_
from quorate.core.contracts import Wire, Work
from quorate.core.errors import ConfigurationError
from quorate.core.groups import Standing
from quorate.core.local_tensor import local
from quorate.core.means import Mean
from quorate.core.vectors import (
    Flat,
    Layout,
    coded_segments,
    count_holders,
    empty_vector,
    header_in,
    layout_on_cpu,
    nbytes_of,
    pack,
    scale_into,
    vector_on_cpu,
)
from quorate.means.headers import energies_in, header_of, put_bad, used_in
from quorate.observe.step_observer import Observers
from quorate.observe.step_times import StepTimer, Timed
from quorate.quorums import kept_rounds
from quorate.quorums.fragment_means import mean_of_fragments, on_cpu
from quorate.quorums.gradient_views import GradientViews, may_be_views, scaled
from quorate.quorums.round_watch import RoundWatch, measured_in, measures_of, payload_of
from quorate.quorums.rows_in_rounds import RowsInRounds
from quorate.quorums.whole_replica import WholeReplica
from quorate.records.tape import OptimizerTape
from quorate.replica.options_in_force import OptionsByPlace
from quorate.replica.replica import Replica
from quorate.replica.shared_step import SharedOptions
from quorate.replica.worker_momentum import FlatMomentum, WorkerMomentum
from quorate.rounds.coding import Coding
from quorate.rounds.fragments import Fragments
from quorate.rounds.log import Round
from quorate.rounds.of_worker import rounds_of
from quorate.rounds.terms import Agreed
from quorate.wire.survivors import DeathTolerance

_KEPT_BYTES = 1 << 26
"""Size up to which the memory of a mean is kept from one round to the next."""


def _in_large_pages(numel: int, dtype: torch.dtype) -> Tensor:
    """Return memory from numpy, which asks for huge pages: new ones cost a fifth of those that torch allocates."""
    return torch.from_numpy(np.empty(numel * dtype.itemsize, np.uint8)).view(dtype)


class Copies(Protocol):
    """Copies of whole replicas; see `train.replica_copy.ReplicaCopy`."""

    def capture(self, *, is_whole: bool) -> tuple[dict[str, Any], Sequence[Tensor]]: ...

    def adopt(self, about: dict[str, Any], tensors: Sequence[Tensor]) -> None: ...


@dataclass
class InRounds:
    """Functions of the worker that its rounds call."""

    step: Callable[[], int]
    """Returns the number of steps that the worker has made."""
    share: Callable[[float | None], float]
    """Returns the weight of a contribution, 1 for a step of full batches; None stands for the weight of its step."""
    is_counted: Callable[[], bool]
    """Returns whether contributions count by the terms of their losses."""
    apply: Callable[[Mean], None]
    """Applies the mean of a round that was formed while the worker did not step."""
    copies: Copies
    kept: kept_rounds.KeptStep | None = None
    """The step whose batch is kept, whoever dies; None: each round is a step."""


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
        replica_wire: Wire | None = None,
        copies: Callable[[Tensor], int] = lambda p: 1,
        observers: Observers | None = None,
    ) -> None:
        """`replica_wire` connects the workers of this replica, if it is in pieces. `counts_ended`: whether the divisor
        of a round counts workers that have ended. `fragments`: see `hand_in`. `copies`: see `WholeReplica`."""
        if clip_norm is not None and not 0 < clip_norm < math.inf:
            raise ConfigurationError(f"clip_norm is {clip_norm!r}; it must be a number above 0, or None")
        self._replica, self._wire, self._timer, self._worker = replica, wire, timer, worker
        self._agreed, self._clip_norm, self._measures, self._counts_ended = agreed, clip_norm, measures, counts_ended
        self._saving, self.watch, self._tolerance = saving, watch, tolerance
        self.contributors = wire.size
        """Number of workers that contributed to the newest round."""
        self._flat_momentum: FlatMomentum | None = None
        self.waits_for_all = agreed.quorum == agreed.callers
        """Whether every round waits for all workers, so that all begin each step after the same round."""
        self._has_called, self._mean_holders, self._mean = False, 0, cast("Flat | None", None)
        self._read = deque[tuple[Any, Flat | None]]()
        """Sums that a GPU may still read, each with the event after which it has."""
        self._options, self._progress_at = OptionsByPlace(), dict[int, float]()
        self._whole = WholeReplica(replica_wire, copies)
        self._fragments = Fragments(tuple(fragments)) if fragments else None
        cut = on_cpu(fragments) if fragments else None
        arguments = wire.channel("rounds"), agreed, layout_on_cpu(replica.layout), self, cut
        self.rounds = rounds_of(*arguments, watch, tape, coding, replica_wire)
        self.standing: Standing = self.rounds.standing
        self._rows = RowsInRounds(replica, wire, agreed, tolerance) if replica.sparse_tables else None
        self._votes = coding is not None and coding.votes
        is_plain = not (measures or fragments or coding is not None or replica.momentum is not None or agreed.batch)
        is_plain = is_plain and agreed.combine is None and agreed.pieces == 1 and not agreed.learners
        self._divisor = 1 if is_plain and wire.size.bit_count() == 1 else wire.size
        """The divisor of contributions before they are added: 1 where the mean's division changes no other digit."""
        watch.divided_by(self._divisor)
        self._observers = observers if self._divisor == 1 else None
        self._views = self._new_views()
        """The gradients in contributions, where a full contribution is the gradient itself."""

    def lay_out(self, layout: Layout) -> None:
        """Lay out the vectors of rounds by `layout` from now on; all workers call this while nothing is in flight."""
        self._mean = None
        if self._replica.sparse_tables and self._rows is None:
            self._rows = RowsInRounds(self._replica, self._wire, self._agreed, self._tolerance)
        self.rounds.lay_out(layout_on_cpu(layout))
        if self._views is not None:
            self._views.close()
        self._views = self._new_views()

    def _new_views(self) -> GradientViews | None:
        trained = self._replica.trained
        if self._observers is None or not may_be_views(trained, self._replica.layout):
            return None
        return GradientViews(trained, self.rounds.blank, self._wire, self._observers)

    def lay_out_fragments(self, fragments: Sequence[Layout]) -> None:
        """Lay out rounds of fragments again, as `lay_out`."""
        self._fragments = Fragments(tuple(fragments))
        self.rounds.lay_out_fragments(on_cpu(fragments))

    def contribute(
        self, vector: Flat | None = None, *, waits: bool = True, weight: float | None = None, version: int | None = None
    ) -> Work[int]:
        self._timer.arrived()
        share = self._worker.share(weight)
        with self._timer.spending("encode"):
            contribution = self._gradient(share) if vector is None else self._packed(vector, share)
            if vector is None and contribution is not None:
                self.watch.measure_gradient(contribution, share)
            progress = self._progress_at[self.version] = self.progress
            own = self._replica.options.to_give()
            options, place = self._options.of(own, self._worker.step(), progress, self._replica.options.moved)
            self.watch.flush_records()
            about: dict[str, Any] = {"weight": share, "options": options, "waits": waits}
            about["step"] = place if (kept := self._worker.kept) is None else min(place, kept.place)
            if self._measures and contribution is not None:
                norm, state = self._norm(contribution), {"is_scaled": self._replica.is_scaled}
                about["measures"] = measures_of(self._timer, norm, has_called=self._has_called, **state)
            if self._views is not None and self._views.lent is not None:
                about["is_lent"] = self._views.lent
            if contribution is not None:
                number = None if self._rows is None else self._send_rows(self._rows, contribution, share, version)
                if (words := self.watch.take_words(self.version)) or number is not None:
                    about["measures"] = payload_of(about.get("measures"), words, number)
            work = self.rounds.contribute(contribution, version=version, **about)
        self._has_called = waits and work.is_called_for
        return Timed(work, self._timer)

    def hand_in(
        self,
        vectors: Sequence[Flat],
        *,
        fresh: float,
        payload: Any = None,
        waits: bool = False,
        slack: float | None = None,
        began: int | None = None,
    ) -> Work[int]:
        self._timer.arrived()
        with self._timer.spending("encode"):
            for vector in vectors:
                self.watch.note_if_not_finite(vector, vector.segments())
            self.watch.flush_records()
            about: dict[str, Any] = {"fresh": fresh, "step": float(self._worker.step()), "measures": payload}
            about |= {"began": began}
            work = self.rounds.hand_in([vector_on_cpu(x) for x in vectors], waits=waits, slack=slack, **about)
        return Timed(work, self._timer)

    def hand_in_last(
        self, vectors: Sequence[Flat], *, fresh: float, payload: Any = None, began: int | None = None
    ) -> Work[int] | None:
        for vector in vectors:
            self.watch.note_if_not_finite(vector, vector.segments())
        about: dict[str, Any] = {"fresh": fresh, "measures": payload, "began": began}
        return self.rounds.hand_in_last([vector_on_cpu(x) for x in vectors], step=float(self._worker.step()), **about)

    def agree(self, *, why: str = "", **settings: Any) -> None:
        self.rounds.agree(why=why, **settings)

    def _send_rows(self, rows: RowsInRounds, contribution: Flat, weight: float, version: int | None) -> int:
        """Send the rows of a contribution to all, and return their number."""
        scale = self._replica.optimizer.__dict__.get("grad_scale")
        unscaled = weight / self._divisor / (1.0 if scale is None else float(scale))
        look = partial(self.watch.note_rows_not_finite, contribution, self._replica)
        return rows.contribute(self.version if version is None else version, unscaled, look)

    def _packed(self, vector: Flat, weight: float) -> Flat:
        """Return a copy of `vector` for a round: times its share of the world, with a header."""
        packed = scale_into(vector, weight / self._divisor, self.rounds.blank())
        header_in(packed).copy_(header_of(weight, [True] * len(self._replica.trained), packed.layout))
        self.watch.note_if_not_finite(packed, packed.segments())
        return packed

    def _gradient(self, weight: float) -> Flat | None:
        """Return this worker's unscaled gradient; None if it has none, or a gradient scaler has found it infinite."""
        attributes: dict[str, Any] = self._replica.optimizer.__dict__
        if self._views is not None:
            is_unscaled = attributes.get("grad_scale") is None and not float(attributes.get("found_inf", 0.0))
            if (lent := self._views.take(as_it_is=is_unscaled and weight == 1.0)) is not None:
                return self._of_views(lent, weight)
        grads, momentum = [x if x is None else local(x) for x in self._replica.gradients], self._replica.momentum
        scale, vector = attributes.get("grad_scale"), self.rounds.blank()
        flat = None if momentum is None else self._flat_momentum_for(momentum, vector.layout, grads)
        if flat is not None:
            pack(grads, vector, scale=1.0 if scale is None else 1 / float(scale))
        products: list[float] | None = None
        if momentum is not None and flat is None and scale is None and _are_on_device(present(grads)):
            products, are_finite = self._products(momentum, grads)
        elif momentum is None and self._whole.is_here:
            are_finite = True
        else:
            are_finite = self.watch.are_finite(present(grads) if flat is None else flat.numbers_of(vector))
        can_step, is_finite = not float(attributes.get("found_inf", 0.0)), are_finite
        if not self._whole.is_here:
            can_step, is_finite = self._whole.all_are(can_step, are_finite)
        has_rows = any(p.grad is not None for p in self._replica.sparse_tables)
        if not can_step or not (has_rows or present(grads)):
            return None
        if flat is not None and is_finite:
            return self._stepped(flat, weight, vector)
        if momentum is not None and is_finite:
            unscaled = grads if scale is None else scaled(grads, 1 / float(scale))
            return self._ahead(momentum, unscaled, weight, vector, products)
        share = weight / self._divisor
        pack(grads, vector, scale=share if scale is None else share / float(scale))
        header_in(vector).copy_(header_of(weight, [grad is not None for grad in grads], vector.layout))
        self.watch.note_if_not_finite(vector, grads)
        if not is_finite and not self._whole.is_here:
            put_bad(header_in(vector), self._wire.rank, self._wire.max_size)
        return vector

    def _of_views(self, vector: Flat, weight: float) -> Flat:
        """Write the header of a contribution in which the gradients lie already."""
        grads = self._replica.gradients
        header_in(vector).copy_(header_of(weight, [grad is not None for grad in grads], vector.layout))
        self.watch.note_if_not_finite(vector, grads)
        return vector

    def _norm(self, vector: Flat) -> float:
        return self._whole.norm(vector.segments(), self._replica.trained)

    def _products(self, momentum: WorkerMomentum, grads: Sequence[Tensor | None]) -> tuple[list[float] | None, bool]:
        """Return the values of `WorkerMomentum.products`, and whether all gradients are finite; a GPU is waited for
        once. None: gradients are clipped, which changes the products."""
        products = [] if self._clip_norm is not None else momentum.products(self._replica.trained, grads)
        flags = [x.isfinite().all() for x in present(grads)] if self.watch.looks else []
        if not (products or flags):
            return None, True
        is_bad = [torch.stack(flags).all().logical_not().to(flags[0].device, torch.float32)] if flags else []
        values: list[float] = torch.stack([x.to(torch.float32) for x in (*products, *is_bad)]).tolist()
        are_finite = not (flags and values.pop())
        return values if self._clip_norm is None else None, are_finite

    def _ahead(
        self,
        momentum: WorkerMomentum,
        grads: list[Tensor | None],
        weight: float,
        vector: Flat,
        products: Sequence[float] | None = None,
    ) -> Flat:
        """Write into `vector` what `WorkerMomentum.ahead` makes of this worker's gradient, and return it."""
        if self._clip_norm is not None:
            norm = self._whole.norm(grads, self._replica.trained)
            grads = scaled(grads, self._clip_norm / (norm + 1e-6)) if norm > self._clip_norm else grads
        vectors, energies = momentum.ahead(self._replica.trained, grads, weight, products)
        pack(vectors, vector, scale=1 / self._divisor)
        header_in(vector).copy_(header_of(weight, [energy * weight for energy in energies], vector.layout))
        return vector

    def _stepped(self, flat: FlatMomentum, weight: float, vector: Flat) -> Flat:
        """Do in place what `_ahead` does, with the gradient that is in `vector`."""
        if self._clip_norm is not None and (norm := self._norm(vector)) > self._clip_norm:
            for numbers in flat.numbers_of(vector):
                numbers.mul_(self._clip_norm / (norm + 1e-6))
        energies = flat.step(vector, weight=weight, scale=1 / self._divisor)
        header_in(vector).copy_(header_of(weight, [energy * weight for energy in energies], vector.layout))
        return vector

    def _flat_momentum_for(
        self, momentum: WorkerMomentum, layout: Layout, grads: Sequence[Tensor | None]
    ) -> FlatMomentum | None:
        """Return the momentum in one vector; None where it cannot be kept so, or these gradients do not allow it."""
        flat = self._flat_momentum
        if flat is None or flat.layout is not layout or flat.momentum is not momentum:
            flat = self._flat_momentum = FlatMomentum(momentum, self._replica.trained, layout)
        return flat if flat.takes(grads) else None

    def completed(self, *, up_to: int | None = None, keeps_at_once: bool = False) -> Iterator[Mean]:
        for round in self.rounds.completed(in_step=not keeps_at_once, up_to=math.inf if up_to is None else up_to):
            mean = self._mean_of(round)
            if mean is not None:
                yield mean
                self.watch.applied(round.number)
        self._release_mean()

    def goes_away(self) -> None:
        """See `Rounds.goes_away`."""
        self.rounds.goes_away()

    def is_back(self) -> None:
        """Step again, after the rounds that the others have applied meanwhile."""
        for round in self.rounds.is_back():
            self._apply(round)

    def enter(self, *, is_further: bool = False) -> None:
        """Join the workers that train: see `Rounds.enter`."""
        for round in self.rounds.enter(is_further=is_further):
            self._apply(round)

    def pause(self, *, ended: bool) -> None:
        """Apply rounds until no worker steps. All replicas are equal then, and nothing is pending."""
        if ended and self._views is not None:
            self._views.close()
        self.rounds.pause(ended=ended, apply=self._apply)
        if ended and self._rows is not None:
            self._rows.held.close()
        self.watch.rows.look()

    def _apply(self, round: Round) -> None:
        mean = self._mean_of(round)
        if mean is not None:
            self._worker.apply(mean)
            self.watch.applied(round.number)
            self._release_mean()

    def _mean_of(self, round: Round) -> Mean | None:
        self.contributors = len(round.contributors)
        self.watch.note_round(round)
        round = round if self._worker.kept is None else kept_rounds.whole_step(self._worker.kept, round)
        if round.sum is None or round.weight <= 0:
            return None  # no worker applies it
        if self._fragments is not None:
            return mean_of_fragments(round, self._fragments, self._wire.rank, self.watch, self._agreed.learners)
        if self.watch.leaves_out(round, round.sum, is_scaled=self._replica.is_scaled):
            return None
        momentum, options = self._replica.momentum, round.options
        world = self._agreed.batch or (round.alive if self._counts_ended else round.live)
        is_of_all = self.waits_for_all and self._worker.is_counted()
        divisor = world if self._agreed.divide_by == "world" and not is_of_all else round.weight
        if momentum is not None:
            share = round.weight / divisor
            divisor = divisor if momentum.kind == "sgd" else round.weight
            options = SharedOptions(options, share, energies_in(round.sum, len(self._replica.trained)))
        factor = self._divisor / divisor
        self._replica.used = used_in(round.sum, len(self._replica.trained))
        if self._rows is not None:
            self._rows.take(round)
        sum_norm = math.nan
        if self._clip_norm is not None or self._measures:
            sum_norm = math.hypot(self._norm(round.sum), 0.0 if self._rows is None else self._rows.norm)
        if self._clip_norm is not None and momentum is None and (norm := factor * sum_norm) > self._clip_norm:
            factor *= self._clip_norm / (norm + 1e-6)
        if self._rows is not None:
            self._rows.write(factor)
        own_count = sum([count for _, count in round.contributors.get(self._wire.rank, ())])
        self._learn_delay(round)
        smoothing = 1.0 if momentum is None else momentum.smoothing
        self.watch.measure_noise(round, round.sum, smoothing)
        measured = measured_in(round, sum_norm**2, smoothing) if self._measures else None
        while self._read and self._read[0][0].query():
            self._read.popleft()
        mean = scale_into(round.sum, factor, self._mean_buffer(), lambda event: self._read.append((event, round.sum)))
        if self._votes:
            for part in coded_segments(mean.layout):
                elected_(mean.parts[part])
        return Mean(mean=mean, contributions=own_count, options=options, measured=measured)

    def _mean_buffer(self) -> Flat:
        """Return memory that the optimizer may overwrite; that of the round may belong to several workers."""
        if self._mean is None or count_holders(self._mean) > self._mean_holders:
            self._mean = empty_vector(self._replica.layout, _in_large_pages)
            self._mean.segments()
            self._mean_holders = count_holders(self._mean)
        return self._mean

    def _release_mean(self) -> None:
        """Release the memory of the mean where it is large: gradients may take it until the next round."""
        if self._mean is not None and nbytes_of(self._mean) > _KEPT_BYTES:
            self._mean = None

    def _learn_delay(self, round: Round) -> None:
        momentum = self._replica.momentum
        for staleness, _ in round.contributors.get(self._wire.rank, ()):
            version = round.number - 1 - staleness
            if momentum is not None and version in self._progress_at:
                momentum.was_late(self.progress - self._progress_at[version])
            self._progress_at = {other: at for other, at in self._progress_at.items() if other >= version}

    # -- checkpoint.participants.KeptRounds

    @property
    def agreed(self) -> Agreed:
        return self.rounds.agreed

    @property
    def version(self) -> int:
        return self.rounds.version

    @property
    def progress(self) -> float:
        """Synchronous steps that the training has made up to the newest round that this replica has applied."""
        return self.rounds.progress

    def ask_for_save(self, request: int) -> None:
        self.rounds.ask_for_save(request)

    def kept(self) -> dict[str, Any]:
        of = self.rounds, self._replica, self._wire.size, self._divisor, self._rows
        return {**kept_rounds.kept_of(*of), **kept_rounds.momentum_kept(self._replica)}

    def restore(self, olds: Sequence[dict[str, Any]], steps: float) -> list[str]:
        if not olds:
            return kept_rounds.begin_at(self.rounds, steps)
        place = self._wire.rank, self._wire.size
        kept_rounds.restore_momentum(self._replica, olds, *place)
        return kept_rounds.restore(self.rounds, self._replica, olds, *place, self._divisor, self._rows)

    # -- rounds.rounds.Replica

    def reached(self, number: int, term: int, *, in_step: bool) -> bool:
        return self._saving.reached(number, term, in_step=in_step)

    def boundary(self) -> None:
        self._saving.boundary()

    def met(self, number: int, joined: Sequence[int]) -> None:
        era = f"{self._timer.name} {number}"  # rounds of other optimizers may have this number
        self._tolerance.go_on_with([*range(self._wire.size), *joined], era, self._agreed.pieces)

    def capture(self, *, is_whole: bool) -> tuple[dict[str, Any], Sequence[Tensor]]:
        header, tensors = self._worker.copies.capture(is_whole=is_whole)
        header, tensors = kept_rounds.with_kept_step(self._worker.kept, header, tensors)
        return {**header, "rows": self.watch.rows.held}, tensors

    def adopt(self, header: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        self._worker.copies.adopt(header, tensors)
        kept_rounds.adopt_kept_step(self._worker.kept, header, tensors, self.rounds.blank)
        self.watch.rows.jumped(header["rows"])


def _are_on_device(x: Sequence[Tensor]) -> bool:
    return len({(tensor.device, tensor.dtype) for tensor in x}) == 1 and x[0].device.type != "cpu"


def present(grads: Sequence[Tensor | None]) -> list[Tensor]:
    """Return `grads` without None."""
    return [x for x in grads if x is not None]
