"""Means among all workers of one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from quorate.buckets.ready import ReadyGradients, shares_up_to
from quorate.core.autocast import without_autocast
from quorate.core.contracts import Done, Wire, Work
from quorate.core.device_copies import to_device
from quorate.core.errors import ConfigurationError, WireTimeout
from quorate.core.local_tensor import numbers_in
from quorate.core.means import Mean, Means
from quorate.core.vectors import Flat, Layout, empty_vector, header_in, placeholder, scale_into, with_longer_header
from quorate.means.dense import Dense, DenseOnChannels
from quorate.means.fault_tolerant_sum import FaultTolerantSum
from quorate.means.forward_buffers import BufferCopies
from quorate.means.headers import (
    BUFFERS,
    COUNTS,
    ENDED,
    MEASURED,
    PAUSED,
    VECTORS,
    WEIGHT,
    Headers,
    edits_in,
)
from quorate.means.on_host import OnHost
from quorate.means.reducer import InParts, Reducer
from quorate.means.table_changes import means_of_tables
from quorate.means.watches import PartSchedule, Shadow, Watches
from quorate.observe.step_times import StepTimer, Timed
from quorate.replica.replica import Replica
from quorate.wire.survivors import Survivors, gather_numbers, mean_of_number
from quorate.wire.work import Followed, Together, advanced

_POLL = 0.02


class MeansOfAll:
    """The implementation of `core.means.Means` for one worker.

    With every vector travel its weight, how many workers have ended or paused, which parameters have a gradient, and
    which parts changed after they were sent. `before` are the worker's means of other parameters, which are closed.
    """

    def __init__(
        self,
        replica: Replica,
        wire: Wire,
        timer: StepTimer,
        watches: Watches,
        shadow: Shadow,
        reducer: Reducer,
        *,
        overlaps: bool,
        before: MeansOfAll | None = None,
    ) -> None:
        self.wire, self.size, self._replica = wire, wire.size, replica
        self.layout, self._parameters = replica.layout, replica.trained
        others = None if before is None else before.headers
        self.headers: Headers = Headers(replica, wire, watches.announced, others, watches.within)
        reducer.measure(timer.spending)
        reducer.choice_notes.append(watches.choices)
        self.reducer: Reducer | FaultTolerantSum = reducer
        if watches.beside is not None:
            self.reducer = FaultTolerantSum(self.layout, wire, watches.beside, self.headers.changed, reducer)
        self._follows = wire.sums_on(self.layout.parts[-1].device) and watches.beside is None
        """Whether the stream of the GPU waits for sums, and this thread only for numbers of them. A death would hold up
        the stream, so that a worker that is to survive it waits itself."""
        is_by_host = isinstance(self.reducer, InParts) and self._follows
        self._header_wire = wire.channel("headers") if is_by_host and not self.headers.is_alone else None
        """Sums headers on the hosts, where vectors are summed on GPUs: no step waits for a GPU to read them."""
        self._stays = self.headers.is_alone
        # Strategies that exchange no gradients in backward passes may never need the vector.
        is_unwritten = self._stays or not overlaps
        flat = placeholder(self.layout) if is_unwritten else empty_vector(self.layout, wire.empty)
        self._done_by = shares_up_to(self.layout)
        self._timer, self._shadow, self._watches = timer, shadow, watches
        self.ready = ReadyGradients(
            self._parameters,
            flat,
            self._launch if overlaps and not self._stays else None,
            partial(empty_vector, on_cpu=wire.empty),
            is_unwritten=is_unwritten,
            tables=replica.sparse_tables,
        )
        self.tables = means_of_tables(replica, wire, self.ready, self.headers.look)
        """The means of tables whose gradients are sparse, which are formed beside every mean of vectors."""
        self.ended = self.some_ended = self.all_ended = self.paused = self.all_away = self.some_away = False
        self._away = 0.0
        self.edits: Literal["none", "alike", "unlike"] = "none"
        """How scripts have edited the parameters since the newest mean, if no worker has made a step; at a pause."""
        self.share = self.total = 0.0
        """The share of the newest mean of vectors, and the weight of the newest mean of gradients."""
        self.vectors = 0
        """The number of means of vectors that this worker has begun in its steps."""
        self.weight_of_paused = 0.0
        """The weight of each worker that has paused or ended, whose gradient counts as zeros, in gradients of all."""
        self._under_way: Work[tuple[Flat, Tensor]] | None = None
        """The newest mean in which this worker takes part without stepping."""
        self._weight = self._weight_sent = 1.0
        self.parts: PartSchedule | None = None if before is None else before.parts
        """The schedule of layouts of the gradient, where they change while training."""
        if before is not None:
            self.ready.is_alone, self._weight = before.ready.is_alone, before._weight
            self.ready.holds_parts = before.ready.holds_parts
            self._follow(before.reducer)
        self._divisor = self.reducer.divisor(self.size)
        self.ready.scale = self._weight / self._divisor

    def arrange(self, layout: Layout, *, overlaps: bool, channels: int, keeps: bool) -> None:
        """Form the next sums of gradients in parts of another `layout`, on all workers from the same sum on.

        Parts are sent during the backward pass if it `overlaps`, so many as `channels` at once. With `keeps` the layout
        before will come again.
        """
        self._replica.layout = layout
        self.headers.arrange(layout)
        copies = self._watches.announced.buffers
        self.layout = layout if copies is None or not copies.room else with_longer_header(layout, copies.room)
        self.reducer = Dense(layout, self.wire) if channels == 1 else DenseOnChannels(layout, self.wire, channels)
        self.reducer.measure(self._timer.spending)
        self._done_by = shares_up_to(layout)
        self.ready.holds_parts = not overlaps
        self.ready.arrange(self.layout, keeps=keeps)

    @property
    def can_be_arranged(self) -> bool:
        """Whether sums are of the numbers as they are, in whatever parts."""
        return type(self.reducer) is Dense and not self._stays and self.ready.hands_on

    def take_in(self, newcomers: Iterable[int], sums: int | None = None) -> int:
        """Form the sums with `newcomers`, too, from the next one on; return the number of sums so far.

        Every member calls this after the same sum; a newcomer passes the number of `sums` so far.
        """
        assert isinstance(self.reducer, FaultTolerantSum), "nobody joins other sums"
        admission = self.headers.admission
        admission.take_in(newcomers)
        self._forget_buffers()
        return self.reducer.take_in(admission.members.everyone, sums)

    def _follow(self, before: Reducer | FaultTolerantSum) -> None:
        if isinstance(self.reducer, FaultTolerantSum):
            if isinstance(before, FaultTolerantSum):
                self.reducer.follows(before)
        elif isinstance(before, Reducer) and type(before) is type(self.reducer):  # other shapes may have another one
            self.reducer.follows(before)

    def gradient_begins(self, weight: float, unit: float | None = None) -> None:
        """Begin a backward pass whose gradient counts `weight`; `.grad` is the mean times `weight`, over `unit`."""
        if self.parts is not None:
            self.parts.before_sum()
        self._weight, self.ready.scale = weight, (weight if unit is None else unit) / self._divisor
        self._weighs(weight)
        self.ready.begin()

    def _weighs(self, weight: float) -> None:
        self._weight_sent = weight
        self.reducer.weighs(weight if weight > 0 else 1.0)

    def _launch(self, part: int, x: Tensor) -> None:
        if self._watches.spending.is_modelled:
            self._watches.spending.backward_has_done(self._done_by[part])
        if part < len(self.layout.parts) - 1:
            self.headers.look(x)
        without_autocast(self.reducer.part_ready, part, x)

    # -- core.means.Means

    def step_alone(self, is_alone: bool) -> None:
        self.ready.is_alone = is_alone

    def code(self, chosen: Mapping[str, Tensor] | None) -> None:
        self.reducer.code(chosen)

    def vote(self, is_ready: bool) -> bool:
        self.headers.votes |= is_ready
        return self.headers.has_voted

    def of(self, x: Flat, *, weight: float = 1.0, looks: bool = False) -> Work[Flat]:
        if self.ready.is_under_way:
            raise ConfigurationError(
                "parts of the gradient are on their way since the backward pass; a strategy that overrides backward() "
                "calls worker.means.of_gradient() in it, before it forms other means"
            )
        self._arrive()
        self.vectors += 1
        with self._timer.spending("encode"):
            self._weighs(weight)
            sent, own = self._vector(x, weight)
            self.headers.sign_vector(own, x if looks else None)
            work = self._summed(sent, own, self.reducer.kept)
        return Timed(Together([work], lambda results: self._weighted(*results[0]), self.wire.clock), self._timer)

    def of_gradient(self) -> Work[Flat]:
        self._arrive()
        self._weighs(self._weight)
        return Timed(self._gradient_mean(self._weight), self._timer)

    def _arrive(self) -> None:
        self._timer.arrived()
        self.headers.take_late()
        self._finish_shadow()

    def of_number(self, value: Tensor) -> Tensor:
        """Return the mean of the `value` of every worker; all that train call it at the same place."""
        return mean_of_number(value, self.wire, self.survivors)

    def gather(self, numbers: Sequence[float]) -> list[list[float]] | None:
        is_open = self.some_ended and not self.all_ended
        return None if is_open else gather_numbers(numbers, self.wire, self.survivors)

    def _gradient_mean(self, weight: float) -> Work[Flat]:
        headers, numbers = self.headers, list[float]()
        if self._stays:
            self._learn_alone(weight)
            return Done(self.ready.flat)

        def write_header(header: Tensor, touched: Sequence[bool], dirty: set[int]) -> None:
            last, has_sent_parts = self.ready.flat.parts[-1], self.ready.hands_on
            headers.look(*(() if has_sent_parts else self.ready.flat.parts[:-1]), last[: last.numel() - header.numel()])
            numbers[:] = own = headers.of_gradient(weight, touched, waits=header.device.type == "cpu")
            if dirty:
                own = list(numbers)
                headers.put_changed(own, dirty)
            if self._header_wire is None:
                headers.write_of_gradient(header, own)
            else:
                headers_summed.append(self._header_wire.all_reduce(torch.tensor(own, dtype=torch.float64)))
                headers.write_measured(header)

        def write_again(header: Tensor) -> None:
            headers.write_of_gradient(header, numbers)

        headers_summed = list[Work[Tensor]]()
        with self._timer.spending("encode"):
            message = None if self.tables is None else self.tables.message(self.ready.scale)
            self.ready.complete(write_header)
            if self.parts is not None:
                self.parts.sum_begins()
            works = self._launched(self.ready.flat, lambda: self.ready.again(write_again), message)

        def finish(sums: list[Any]) -> Flat:
            rows: Sequence[Tensor] = () if self.tables is None else self.tables.take(self._received(sums))
            if not headers_summed:
                header = headers.of_sum(self._header_in(sums[0]))
            elif headers.waits_for_bad:
                measured = headers.measured_in(sums[0], self.wire)
                own = headers.with_measured(headers_summed[0].wait().tolist(), measured.wait())
                header = headers.of_sum(torch.tensor(own, dtype=torch.float64))
            else:
                header = headers.of_sum(headers_summed[0].wait())
                headers.learn_late(header, sums[0], self.wire, self.reducer.counted, rows)
            self._learn(header)
            headers.learn_gradients(header)
            for part, changed in enumerate(header[headers.changed]):
                if changed:
                    self._repeat(part, sums[0])
            if header[BUFFERS]:
                self._copy_buffers(header, sums[0])
            headers.compare(header)
            self.total, weight = header[WEIGHT], self._weight_in(header)
            mean: Flat = self._scaled(sums[0], weight, weight)
            for values in rows:
                values.mul_(self._factor(weight))
            if header[WEIGHT] > self.reducer.counted:  # examples or terms, and no workers
                self._timer.contributors = round(max(header[COUNTS : headers.changed.start], default=0.0))
            if header[MEASURED] > 0 and (not headers_summed or headers.waits_for_bad):
                headers.measure(header, mean, self.reducer.counted, rows)
            return mean

        return Together(works, finish, self.wire.clock)

    def _launched(self, x: Flat, kept: Callable[[], Flat], rows: Tensor | None) -> list[Work[Any]]:
        """Launch a sum, and the exchange of the rows beside it."""
        tables = self.tables
        if tables is None or rows is None:
            launched = self.reducer.start(x, kept)
            return [Followed(launched) if self._follows else launched]
        if isinstance(self.reducer, FaultTolerantSum):
            return [self.reducer.start(x, kept, rows, tables.exchange)]
        launched = self.reducer.start(x, kept)
        return [Followed(launched) if self._follows else launched, tables.exchange(rows)]

    def _received(self, sums: list[Any]) -> Sequence[Tensor]:
        """Return the rows of all from the results of works that `_launched` has returned."""
        return self.reducer.newest_rows if isinstance(self.reducer, FaultTolerantSum) else next(iter(sums[1:2]), ())

    def _header_in(self, sums: Flat) -> Tensor:
        """Return the header of a sum on the CPU; a GPU is waited for."""
        header = header_in(sums)
        here = header if header.device.type == "cpu" else self.reducer.header_of(sums)
        return self.wire.on_host(header).wait() if here is None else here

    def _summed(self, sent: Flat, own: Tensor, kept: Callable[[Flat], Callable[[], Flat]]) -> Work[tuple[Flat, Tensor]]:
        """Launch the sum of a vector with the header `own`, which is on the CPU."""
        header, headers = header_in(sent), self._header_wire
        rows = None if self.tables is None else self.tables.empty_message()
        if headers is not None:
            header.zero_()
            works = self._launched(sent, kept(sent), rows)
            works.append(headers.all_reduce(own[: self.headers.length].double()))
            return Together(works, lambda results: (results[0], results[-1]), self.wire.clock)
        if header.device.type != "cpu":
            header.copy_(to_device(own, header))
        works = self._launched(sent, kept(sent), rows)
        return Together(works, lambda sums: (sums[0], self._header_in(sums[0])), self.wire.clock)

    def _learn_alone(self, weight: float) -> None:
        """Handle a gradient without other replicas: there is no mean to form, and gradients stay in place."""
        self.headers.look(*(numbers_in(x).reshape(-1) for x in self._replica.all_gradients if x is not None))
        waits = self.headers.waits_for_bad
        header = self.headers.joined(self.headers.of_gradient(weight, self.ready.pass_over(), waits=waits))
        if not waits:
            self.headers.learn_flag_late(self.wire)
        self._learn(header)
        self.headers.learn_gradients(header)

    @property
    def survivors(self) -> Survivors | None:
        """The workers that form sums, where these continue after a death."""
        return self.reducer.survivors if isinstance(self.reducer, FaultTolerantSum) else None

    def _copy_buffers(self, header: Sequence[float], sums: Flat) -> None:
        """Copy buffers after a sum, and make room for them in the next sums, which all workers do at the same sum."""
        self.headers.copy_buffers(header, sums)
        copies = self._watches.announced.buffers
        if copies is not None and copies.usual_numbers > copies.room and self._carries_buffers:
            self._hold_buffers(copies, copies.usual_numbers)

    @property
    def _carries_buffers(self) -> bool:
        """Whether sums are of the numbers as they are, so that a header may be longer than the reducer knows."""
        reducer = self.reducer.of if isinstance(self.reducer, FaultTolerantSum) else self.reducer
        return isinstance(reducer.inner if isinstance(reducer, OnHost) else reducer, Dense)

    def _hold_buffers(self, copies: BufferCopies, room: int) -> None:
        copies.room = room
        self.layout = with_longer_header(self._replica.layout, room)
        self.ready.lay_out(self.layout)

    def _forget_buffers(self) -> None:
        """Let the next copy of buffers travel by itself, as a newcomer does not know which ones travel."""
        copies = self._watches.announced.buffers
        if copies is not None and copies.room:
            copies.forget()
            self._hold_buffers(copies, 0)

    def write_gradient(self, value: Flat) -> None:
        """Make `value` the `.grad` of every parameter that any worker used."""
        if not (self._stays and value is self.ready.flat):
            self.ready.write(value, self._replica.used)
        if self.tables is not None:
            self.tables.write()

    def _repeat(self, part: int, sums: Flat) -> None:
        """Sum a part again that changed on some worker after it was sent; the header of the sum stays."""
        header = header_in(sums).clone()
        if not self.ended:
            self.ready.pack(part)
        else:
            sums.parts[part].zero_()
        self.reducer.again(part, sums.parts[part]).wait()
        header_in(sums).copy_(header)

    def _vector(self, x: Flat, weight: float) -> tuple[Flat, Tensor]:
        """Return the message of a vector that is no gradient, zeros where its weight is 0, and its header on the CPU.

        The header is a part of the message if that is on the CPU as well.
        """
        into = empty_vector(x.layout, self.wire.empty)  # with moments or numbers it is longer than the parameters
        sent = scale_into(x, weight / self._divisor, into) if weight > 0 else Flat.zeros(x.layout)
        header = header_in(sent)
        own = header if header.device.type == "cpu" else torch.zeros(header.numel(), dtype=header.dtype)
        self.headers.write_of_vector(own, weight)
        return sent, own

    def _learn(self, header: Sequence[float]) -> None:
        is_away, all_away = self.ended or self.paused, self.all_ended or self.all_away
        self.headers.learn(header, self.reducer.counted, is_away=is_away, all_away=all_away)
        away = header[ENDED] + header[PAUSED]
        if away != self._away and not is_away:
            self._watches.away_changed(away > self._away)
        self._away, self.some_away = away, away > 0

    def _weighted(self, sums: Flat, summed: Tensor) -> Flat:
        header = self.headers.of_sum(summed)
        self.share = header[VECTORS] / self.reducer.counted
        self._learn(header)
        self.headers.compare(header)
        self._shadow.settle(self._weight_sent)
        return self._scaled(sums, header[WEIGHT], header[VECTORS])

    def _scaled(self, sums: Flat, weight: float, contributors: float) -> Flat:
        self._timer.contributors = round(contributors or 0)
        if type(self.reducer).outcome is not Reducer.outcome:  # it may leave workers out of a mean
            self._watches.exclusions.saw(self.reducer.outcome)
        factor = self._factor(weight)
        return sums if factor == 1.0 else sums.mul_(factor)

    def _factor(self, weight: float) -> float:
        return self.reducer.factor(self.size, weight) if weight else 1.0

    def shadow_until_ended(self, others: Sequence[MeansOfAll]) -> None:
        """Take part in the means of `others` (this one included) with weight 0 until all workers have ended.

        Raises as `Work.wait`; the timeout is that of one mean.
        """
        self.ended = True
        self.headers.take_late()
        self._until(lambda means: means.all_ended, others)

    def shadow_until_paused(self, others: Sequence[MeansOfAll]) -> None:
        """Take part with weight 0 until no worker steps: each has paused or ended. `resume` ends the pause."""
        self.paused = True
        self.headers.take_late()
        self._until(lambda means: means.all_away, others)

    def resume(self) -> None:
        """Step again, as all workers that have paused do."""
        self.paused = self.all_away = False

    def _until(self, is_over: Callable[[MeansOfAll], bool], others: Sequence[MeansOfAll]) -> None:
        alone = all(other is self or is_over(other) for other in others)
        since = self.wire.clock.now()
        while not is_over(self):
            for other in others:
                if other is not self:
                    other._answer()
            self._answer()
            if self._under_way is not None:
                try:
                    self._under_way.wait(None if alone else _POLL)
                    since = self.wire.clock.now()
                except WireTimeout:
                    if alone or self.wire.clock.now() - since > self.wire.timeout:
                        raise

    def _answer(self) -> None:
        """Start one more mean with weight 0, if the last one is over."""
        if self._under_way is not None and not advanced(self._under_way):
            return
        self._finish_shadow()
        if not (self.all_ended or self.all_away):
            if self.parts is not None:
                self.parts.before_sum()
                self.parts.sum_begins()
            contribution, edited = self._shadow.contribution()
            x, weight = contribution or (Flat.zeros(self.layout), 0.0)
            self._weighs(weight)
            sent, own = self._vector(x, weight)
            own[ENDED], own[PAUSED] = float(self.ended), float(self.paused)
            self.headers.put_changed(own, self.ready.interrupt())
            if edited is not None:
                self.headers.write_edit(own, edited)
            self._under_way = self._summed(sent, own, self.reducer.kept)

    def _finish_shadow(self) -> None:
        if self._under_way is None:
            return
        under_way, self._under_way = self._under_way, None
        sums, summed = under_way.wait()
        header = self.headers.of_sum(summed)
        self.some_ended, self.all_ended = header[ENDED] > 0, header[ENDED] == self.reducer.counted
        self.all_away = self.paused and header[ENDED] + header[PAUSED] == self.reducer.counted
        self.edits, self.share = edits_in(header, self.reducer.counted), header[VECTORS] / self.reducer.counted
        self._learn(header)
        if self.all_away or self.all_ended:
            self._shadow.synchronized()
        for part, changed in enumerate(header[self.headers.changed]):
            if changed:
                self.reducer.again(part, torch.zeros_like(sums.parts[part])).wait()
        if header[BUFFERS]:
            self._copy_buffers(header, sums)
        if not self._weight_in(header):
            self.reducer.retract()
        if header[VECTORS] > 0 and self.edits == "none":
            self._shadow.settle(self._weight_sent)
            self._shadow.apply(Mean(mean=sums.mul_(self.reducer.factor(self.size, self._weight_in(header)))))

    def _weight_in(self, header: Sequence[float]) -> float:
        return header[WEIGHT] + self.weight_of_paused * (header[ENDED] + header[PAUSED])

    def close(self) -> None:
        self.ready.close()
        self._watches.exclusions.tell()


_: type[Means] = MeansOfAll
