"""Forming means among all workers of one optimizer, and what travels with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Parameter

from quorate.agreement.admission import Admission
from quorate.agreement.headers import COUNTS, ENDED, RESTING, SAVING, STOPPING, VECTORS, VOTES, WEIGHT
from quorate.agreement.resend import again, packed_again
from quorate.agreement.save_flags import Marks
from quorate.buckets.flat import layout_of
from quorate.buckets.ready import ReadyGradients
from quorate.core.contracts import Wire, Work
from quorate.core.errors import WireTimeout
from quorate.core.strategy import Mean
from quorate.core.vectors import Flat
from quorate.observe.backward import Spending
from quorate.observe.finite import is_finite
from quorate.observe.step_times import StepTimer, Timed
from quorate.reducers.dense import Dense
from quorate.reducers.outliving import Outliving
from quorate.replica.local_gradient import LocalGradient
from quorate.wire.exchange import sum_in_order
from quorate.wire.work import Together

if TYPE_CHECKING:
    from quorate.train.safeguards import Safeguards

_POLL = 0.02


class Agreement:
    """The means of one optimizer's vectors; `Peers` to its strategy.

    With every vector travel its weight, how many workers have ended or rest, which parameters got a gradient, and which
    parts changed after they had left. `used` says of the newest gradient mean which parameters any worker used.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, Parameter]],
        wire: Wire,
        spending: Spending,
        timer: StepTimer,
        watch: Safeguards,
        *,
        overlap: bool,
    ) -> None:
        self.wire, self.rank, self.size = wire, wire.rank, wire.size
        self._parameters = [p for _, p in parameters]
        tensors: list[tuple[str, Tensor]] = [(name, p) for name, p in parameters]
        parts = len(layout_of(tensors).parts) + 1
        self._bad_from = COUNTS + len(tensors) + parts
        self.layout = layout_of(tensors, header=self._bad_from + wire.most)
        self.reducer: Dense | Outliving = Dense(self.layout, wire)
        if watch.outlives:
            self.reducer = Outliving(self.layout, wire, watch.sums, slice(COUNTS + len(tensors), self._bad_from))
        self.admission = Admission(wire, self._bad_from)
        self._blank = partial(Flat.empty, self.layout, wire.empty)
        flat = self._blank()
        total = max(1, sum(p.numel for p in self.layout.parts))
        self._done_by = [sum(p.numel for p in self.layout.parts[: i + 1]) / total for i in range(len(flat.parts))]
        self._spending, self._timer, self._stop, self._finite = spending, timer, watch.stop, watch.finite
        self._are_finite, self._sums = True, list[Tensor]()
        self.marks = Marks(None, self)
        """Who saves."""
        self.bad: list[int] = []
        """Who brought a gradient that is not finite to the newest mean."""
        self.ready = ReadyGradients(
            self._parameters,
            flat,
            self._launch if overlap else None,
            self._blank,
        )
        self.ready.scale = 1.0 / self.size
        self.local = LocalGradient(self._parameters, flat)
        self.used = [False] * len(tensors)
        self.ended = self.all_ended = self.resting = self.all_away = False
        self.some_ended = self.has_vectors = self.votes = self.has_voted = False
        self._company: Work[Flat] | None = None
        self.contribution: Callable[[], tuple[Flat, float] | None] = lambda: None
        """What this worker gives to a mean in which it takes part without stepping, and its weight."""
        self.apply: Callable[[Mean], None] = lambda mean: None
        """Takes the mean that came of it."""
        self.met: Callable[[], None] = lambda: None
        """All have come to a rest, or to their ends."""

    def _launch(self, part: int, x: Tensor) -> None:
        self._spending.backward_has_done(self._done_by[part])
        if part < len(self.layout.parts) - 1:
            self._check(x)
        self.reducer.part_ready(part, x)

    def _check(self, *parts: Tensor) -> None:
        """Before they travel: whether this worker's numbers are finite. A GPU is asked once, at the end."""
        if not self._finite.looks:
            return
        on_cpu = [part for part in parts if part.device.type == "cpu"]
        self._sums += [part.sum().abs().double() for part in parts if part.device.type != "cpu"]
        self._are_finite = self._are_finite and self._finite.sees(on_cpu)

    def mean(self, x: Flat, *, weight: float = 1.0) -> Work[Flat]:
        """See `core.strategy.Peers`. The mean of `worker.gradient` lives until the next backward."""
        self._timer.arrived()
        if self._company is not None:
            self._settle_company()
        if x is self.local:
            return Timed(self._gradient_mean(weight), self._timer)
        with self._timer.spending("encode"):
            given = self._vector(x, weight)
            sums = self.reducer.start(given, again(given, self.reducer))
        return Timed(Together([sums], lambda sums: self._weighted(sums[0]), self.wire.clock), self._timer)

    def mean_of(self, value: Tensor) -> Tensor:
        """The mean of every worker's `value`; all that train ask for it at the same place."""
        if isinstance(self.reducer, Outliving):
            found = self.reducer.survivors.all_gather(value).wait()
            return sum_in_order(found) / len(found)
        return self.wire.all_reduce(value / self.size).wait()

    def _gradient_mean(self, weight: float) -> Work[Flat]:
        assert weight / self.size == self.ready.scale, "a gradient's weight is fixed before its backward begins"
        mine = [0.0] * self.layout.header

        def write_header(header: Tensor, touched: Sequence[bool], dirty: set[int]) -> None:
            last, handed_on = self.ready.flat.parts[-1], self.ready.hands_on
            self._check(*(() if handed_on else self.ready.flat.parts[:-1]), last[: last.numel() - header.numel()])
            if self._sums:
                self._are_finite = self._are_finite and is_finite([x.reshape(1).cpu() for x in self._sums])
                self._sums.clear()
            mine[WEIGHT], mine[STOPPING], mine[SAVING] = weight, self._stop.mark, self.marks.mine()
            mine[VOTES] = float(self.votes)
            if not self._are_finite:
                self._finite.note([s.name for s in self.layout.segments], [p.grad for p in self._parameters])
                mine[self._bad_from + self.rank], self._are_finite = 1.0, True
            mine[COUNTS : COUNTS + len(touched)] = map(float, touched)
            self.admission.put(mine)
            header.copy_(torch.tensor(mine, dtype=header.dtype))
            for part in dirty:
                header[COUNTS + len(touched) + part] = 1.0

        with self._timer.spending("encode"):
            self.ready.complete(write_header)
            kept = packed_again(self._parameters, mine, self.ready.scale, self._blank)
            launched = self.reducer.start(self.ready.flat, kept)

        def finish(sums: list[Flat]) -> Flat:
            header = sums[0].header.tolist()
            count = len(self._parameters)
            self.used = [n > 0 for n in header[COUNTS : COUNTS + count]]
            self._learn(header)
            self.bad = [rank for rank in sorted(self.admission.members) if header[self._bad_from + rank] > 0]
            for part, changed in enumerate(header[COUNTS + count : self._bad_from]):
                if changed:
                    self._repeat(part, sums[0])
            return self._weighted(sums[0], header[WEIGHT])

        return Together([launched], finish, self.wire.clock)

    def write_gradient(self, value: Flat) -> None:
        """Make `value` the `.grad` of every parameter that some worker used.

        A gradient that came into being in this backward is not copied to: `.grad` becomes a view of the vector, which
        is then never written again. One that was there before stays the same tensor and gets the numbers.
        """
        lends = value is self.ready.flat
        grads, numbers = [], []
        with torch.no_grad():
            for index, (p, place) in enumerate(zip(self._parameters, value.segments(), strict=True)):
                if not self.used[index]:
                    continue
                is_new = p.grad is None or self.ready.began_without[index]
                if lends and is_new and p.dtype == place.dtype and p.is_contiguous():
                    p.grad = place.detach()
                    self.ready.is_lent = True
                else:
                    if p.grad is None:
                        p.grad = torch.empty_like(p)
                    grads.append(p.grad)
                    numbers.append(place)
            if grads:
                torch._foreach_copy_(grads, numbers)

    def _repeat(self, part: int, sums: Flat) -> None:
        """Some worker's gradient in `part` changed after it had left: sum it again, header and all."""
        header = sums.header.clone()
        if not self.ended:
            self.ready.pack(part)
        else:
            sums.parts[part].zero_()
        self.reducer.again(part, sums.parts[part]).wait()
        sums.header.copy_(header)

    def _vector(self, x: Flat, weight: float) -> Flat:
        """What travels of a vector that is no gradient; without weight, zeros."""
        into = Flat.empty(x.layout, self.wire.empty)  # with moments or numbers it is longer than the parameters
        mine = x.times(weight / self.size, into) if weight > 0 else Flat.zeros(x.layout)
        header = mine.header.zero_()
        header[WEIGHT], header[VECTORS] = weight, float(weight > 0)
        header[STOPPING], header[SAVING], header[VOTES] = self._stop.mark, self.marks.mine(), float(self.votes)
        self.admission.put(header)
        return mine

    def _learn(self, header: Sequence[float]) -> None:
        """What everyone has learnt in an exchange; where some part of it is to be repeated, still the same."""
        self._stop.learn(header[STOPPING])
        self.admission.learn(header, is_calm=not (header[ENDED] or header[RESTING]))
        self.marks.learn(header[SAVING])
        self.has_vectors = self.has_vectors or header[VECTORS] > 0
        self.has_voted = self.has_voted or header[VOTES] > 0

    def _weighted(self, sums: Flat, weight: float | None = None) -> Flat:
        contributors = weight
        if weight is None:
            header = sums.header.tolist()
            weight, contributors = header[WEIGHT], header[VECTORS]
            self._learn(header)
        total = weight
        self._timer.contributors = round(contributors or 0)
        if total not in (0.0, float(self.size)):
            sums.mul_(self.size / total)
        return sums

    def keep_company(self, others: Sequence[Agreement]) -> None:
        """This worker has ended: take part in the means of `others` (this one included) with weight 0 until all have.

        Raises as `Work.wait`; the timeout is that of one mean.
        """
        self.ended = True
        self._until(lambda agreement: agreement.all_ended, others)

    def rest(self, others: Sequence[Agreement]) -> None:
        """As `keep_company`, until no worker steps here any more: each rests, or has ended. `rested` ends the rest."""
        self.resting = True
        self._until(lambda agreement: agreement.all_away, others)

    def rested(self) -> None:
        """This worker steps again, as all that have rested do."""
        self.resting = self.all_away = False

    def _until(self, is_over: Callable[[Agreement], bool], others: Sequence[Agreement]) -> None:
        alone = all(other is self or is_over(other) for other in others)
        since = self.wire.clock.now()
        while not is_over(self):
            for other in others:
                if other is not self:
                    other._answer()
            self._answer()
            if self._company is not None:
                try:
                    self._company.wait(None if alone else _POLL)
                    since = self.wire.clock.now()
                except WireTimeout:
                    if alone or self.wire.clock.now() - since > self.wire.timeout:
                        raise

    def _answer(self) -> None:
        """One more mean with weight 0, if the last one is over."""
        if self._company is not None:
            if not self._company.done():
                return
            self._settle_company()
        if not (self.all_ended or self.all_away):
            given = self._vector(*(self.contribution() or (Flat.zeros(self.layout), 0.0)))
            given.header[ENDED], given.header[RESTING] = float(self.ended), float(self.resting)
            self._company = self.reducer.start(given, again(given, self.reducer))

    def _settle_company(self) -> None:
        company, self._company = self._company, None
        if company is None:
            return
        sums = company.wait()
        header = sums.header.tolist()
        self.some_ended, self.all_ended = header[ENDED] > 0, header[ENDED] == self.reducer.counted
        self.all_away = self.resting and header[ENDED] + header[RESTING] == self.reducer.counted
        self._learn(header)
        if self.all_away or self.all_ended:
            self.met()
        for part, changed in enumerate(header[COUNTS + len(self._parameters) : self._bad_from]):
            if changed:
                zeros = torch.zeros_like(sums.parts[part])
                self.reducer.again(part, zeros).wait()
        if header[VECTORS] > 0:
            self.apply(Mean(mean=sums.mul_(self.size / header[WEIGHT])))

    def close(self) -> None:
        self.ready.close()
