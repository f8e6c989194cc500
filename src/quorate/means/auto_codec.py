"""`compress="auto"`: codecs are measured on the run's own gradients, and each part has the one that saves most time.

Idea: The first sums are dense. Then each codec forms the sum of the newest gradient once more, part by part, and each
worker measures the seconds of encoding, the wire and decoding. From those of the slowest worker, and the times at which
parts become ready, all compute the same choice. It is for each part the codec, or none, with which the exchange ends
first after overlap (`means.codec_choice`). This choice, the best of one codec alone and dense sums take turns on
consecutive sums. The choice stays if the time from sum to sum is shorter beyond chance (a paired interval of 95 %), and
is taken back if not. From then on samples guard it. Over `window` sums the results are compared with the dense sum of
the same gradients, formed once at the end of the window. A part whose cosine is below `agreement` gives its codec up.
Every `every` sums the wire is measured again, and all is chosen again where it is twice as fast or slow.

All codecs share one error memory: what one left out, the next one sends, and dense sums send it whole.

Cost: Some four exchanges of the gradient, once, and 12 dense sums in turn with the choice. Then a dense exchange every
`every` sums, and two passes over the gradient during a window. Two vectors of memory, and two more during a window. A
sum that is formed again after a death, and all later sums, are dense.

When it loses: In short trainings, by what it measures. Against the best codec by a few percent, where steps are noisy:
the choice stays dense unless the gain is beyond chance. It measures agreement with dense sums, not what is learnt.

Paper: none. Error memory: Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quorate.codecs.error_feedback import ERROR, ErrorFeedback
from quorate.core.codec import Codec, shapes_in
from quorate.core.contracts import Wire, Work
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat, Layout, bare_layout, carry_coded, coded_segments
from quorate.means.codec_choice import (
    MEASURES,
    PAIRS,
    RUNS,
    TRIES,
    AutoCodecState,
    Cost,
    Gain,
    Trial,
    Window,
    by_name,
    choices,
    cosine_of,
    gain,
    scratch,
)
from quorate.means.coded import Coded, CodedState
from quorate.means.power_sgd import PowerSGD
from quorate.means.reducer import Measured, Reducer, ReducerSettings
from quorate.means.remembering import Remembering, is_finite
from quorate.means.two_phase import TwoPhase, TwoPhaseState
from quorate.wire.cut import all_reduce_bytes
from quorate.wire.work import Stages

if TYPE_CHECKING:
    from quorate.means.reduction import Reduction

DENSE = "none"
_WARM = 3
"""Dense sums before codecs are measured: in the first ones memory is taken and connections are made."""
_BAND = 2.0
"""The factor by which the wire may become faster or slower before codecs are chosen again."""


@dataclass(frozen=True, kw_only=True)
class AutoCodecSettings(ReducerSettings):
    """The codec of each part that makes steps shortest, measured on the run's own gradients."""

    candidates: tuple[str, ...] = ("half", "blocks", "blocks:bits=4", "one-bit", "power-sgd:rank=4,start=0", "top-k")
    """The codecs that are measured, as values of `compress`."""
    agreement: float = 0.9
    """Least cosine between the sum of the results of a window and the dense sum of its gradients."""
    window: int = 16
    """Number of sums in a window."""
    every: int = 512
    """Number of sums from one window to the next."""

    def __post_init__(self) -> None:
        if not -1 <= self.agreement <= 1:
            raise ConfigurationError(f"agreement is {self.agreement}; it must be a cosine (-1 to 1)")
        if not 1 <= self.window < self.every:
            raise ConfigurationError(
                f"window is {self.window} and every {self.every}; a window has at least one sum, and fewer than every"
            )
        for candidate in self.candidates:
            _check(candidate)

    def reducer(self, layout: Layout, wire: Wire, seed: int) -> Reducer:
        return AutoCodec(layout, wire, self, seed)


def _reduction(candidate: str) -> Reduction:
    from quorate.means.reduction import reduction_of

    return reduction_of({"compress": candidate})


def _check(candidate: str) -> None:
    reduction = _reduction(candidate)
    codec = reduction.codec
    if isinstance(codec, Codec):
        is_usable = not (codec.votes or reduction.keeps_more or codec.bare.has_unit)
    else:
        is_usable = reduction.settings.compress == "power-sgd" and codec is not None and not vars(codec)["start"]
    if not is_usable:
        raise ConfigurationError(
            f'"{candidate}" is no candidate of compress="auto": its codec must keep nothing but errors, and power-sgd '
            "have start=0; leave it out"
        )


class AutoCodec(Remembering):
    """Sums whose parts have the codecs that make steps shortest; parts that are not coded are summed unchanged."""

    def __init__(self, layout: Layout, wire: Wire, settings: AutoCodecSettings, seed: int) -> None:
        super().__init__(layout, wire, coded_segments(layout))
        self.settings, self._seed = settings, seed
        self._coded = sorted(self._own_parts)
        bare = bare_layout(layout)
        self._state = AutoCodecState(
            errors=Flat.zeros(bare), owned=Flat.zeros(bare), codecs=[DENSE] * len(self._coded), size=wire.size
        )
        self._candidates = {candidate: _reduction(candidate) for candidate in settings.candidates}
        self._plan: list[str] = list(self._state.codecs)
        self._groups: dict[str, Remembering] = {}
        """The reducers of the codecs in use, by name."""
        self._owing = set(self._coded)
        """Parts whose errors may differ from 0."""
        self._released: set[int] = set()
        """Parts whose errors are sent in the sum under way, and not remembered."""
        self._ready: dict[int, float] = {}
        self._ready_times: list[dict[int, float]] = []
        self._costs: list[dict[str, Cost]] = []
        self._ready_by_part: list[float] = []
        self._step_seconds = 0.0
        self._wire_seconds = 0.0
        """Seconds that the wire took for the largest part when codecs were measured; 0: unknown."""
        self._trial: Trial | None = None
        self._window: Window | None = None
        self._own: dict[int, Tensor] = {}
        self._ended_at = math.nan
        """When the sum before this one was complete."""

    def measure(self, spending: Measured) -> None:
        super().measure(spending)
        for group in self._groups.values():
            group.measure(spending)

    def _note(self, codecs: Mapping[str, str], why: str) -> None:
        for note in self.choice_notes:
            note(codecs, why)

    @property
    def state(self) -> AutoCodecState:
        self.commit()
        return self._state

    @property
    def has_settled(self) -> bool:
        """Whether the choice is made, and its codecs have agreed with dense sums over a window."""
        is_guarded = self._state.sums > self.settings.window + 1
        return self._state.stage == RUNS and (is_guarded or set(self._plan) == {DENSE})

    # -- codecs in use

    def _codec_of(self, part: int) -> str:
        return self._plan[self._coded.index(part)]

    def _of(self, part: int) -> Remembering | None:
        """Return the reducer of a part; None where its sum is dense."""
        return self._groups.get(self._codec_of(part))

    def _feeds_back(self, codec: str) -> bool:
        return codec != DENSE and self._candidates[codec].feeds_back

    def _use(self, plan: Sequence[str]) -> None:
        """Use these codecs from the next sum on; no sum is under way."""
        self._plan = list(plan)
        if any(isinstance(group, TwoPhase) for group in self._groups.values()):
            self._release_pieces()
        before = self._groups
        self._groups = {}
        for codec in dict.fromkeys(plan):
            parts = [part for part, name in zip(self._coded, plan, strict=True) if name == codec]
            if codec != DENSE:
                old = before.get(codec)
                is_same = old is not None and sorted(old._own_parts) == parts and isinstance(old, PowerSGD)
                self._groups[codec] = old if is_same and old is not None else self._group(codec, parts, self._state)

    def _release_pieces(self) -> None:
        for error, owned in zip(self._state.errors.parts, self._state.owned.parts, strict=True):
            error.add_(owned)
            owned.zero_()
        self._owing = set(self._coded)

    def _group(self, name: str, parts: Sequence[int], state: AutoCodecState) -> Remembering:
        """Return the reducer of a codec for these parts, with its errors in `state`."""
        layout = replace(
            self.layout,
            parts=tuple(replace(part, coded=number in parts) for number, part in enumerate(self.layout.parts)),
        )
        reduction = self._candidates[name]
        codec = reduction.codec
        if isinstance(codec, ReducerSettings):
            group = codec.reducer(layout, self.wire, self._seed)
            assert isinstance(group, PowerSGD)
            group.share_errors(state.errors)
        else:
            assert isinstance(codec, Codec)
            way = reduction.way(shapes_in(self.layout).values(), self.wire.size)
            feeds_back = isinstance(codec, ErrorFeedback)
            names = {segment.name for segments in coded_segments(layout).values() for segment in segments}
            memory = {ERROR: by_name(state.errors, names)} if feeds_back else {}
            kind: type[Coded] = TwoPhase if way == "two-phase" else Coded
            of_codec: CodedState = CodedState(memory=memory, sums=state.draws)
            if kind is TwoPhase:
                owned = by_name(state.owned, names) if feeds_back else {}
                of_codec = TwoPhaseState(memory=memory, sums=state.draws, owned=owned, size=self.wire.size)
            group = kind(layout, self.wire, codec.rescaled(1 / self.wire.size), self._seed, of_codec)
        group.measure(self.spending)
        return group

    # -- a sum

    def _begin(self) -> None:
        super()._begin()
        if self._state.size != self.wire.size:  # it was restored from another world
            self._release_pieces()
            self._state.size, self._state.stage, self._state.sums = self.wire.size, MEASURES, 0
            self._state.codecs = [DENSE] * len(self._coded)
        wanted = self._state.codecs
        if self._trial is not None:
            wanted = self._trial.plans[self._state.sums % len(self._trial.plans)]
        if wanted != self._plan:
            self._use(wanted)

    def _launched(self, part: int, x: Tensor) -> Work[Any]:
        self._ready[part] = self.wire.clock.now()
        group, codec = self._of(part), self._codec_of(part)
        if self._window is not None:
            self._own[part] = x.clone()
        if part in self._owing and not self._feeds_back(codec):
            with self.spending("encode"):
                x = x + self._state.errors.parts[part]
            self._released.add(part)
        return self.wire.all_reduce(x) if group is None else group._launched(part, x)

    def _finish(self, into: Mapping[int, Tensor], results: Mapping[int, Any]) -> Stages[None]:
        for group in self._groups.values():
            parts = [part for part in into if self._of(part) is group]
            own = {part: into[part] for part in parts}
            yield from group._finish(own, {part: results[part] for part in parts}) or ()
        for part, x in into.items():
            if self._of(part) is None and results[part] is not x:
                x.copy_(results[part])
            if part in self._released and not is_finite(x):  # equal on all workers, as sums are
                self._released.discard(part)

    def _summed(self, x: Flat, results: Sequence[Any]) -> Stages[Flat]:
        summed = yield from super()._summed(x, results)
        if self._coded and self.wire.size > 1:
            yield from self._sum_ended(summed)
        return summed

    def commit(self) -> None:
        if not self._is_over:
            return
        for group in self._groups.values():
            group._is_over = True
            group.commit()
        for part in self._released:
            self._state.errors.parts[part].zero_()
        self._owing -= self._released
        self._owing |= {part for part in self._coded if self._feeds_back(self._codec_of(part))}
        self._released, self._is_over = set(), False

    def retract(self) -> None:
        for group in self._groups.values():
            group.retract()
        self._released, self._is_over = set(), False

    def follows(self, before: Reducer) -> None:
        assert isinstance(before, AutoCodec)
        before.commit()
        before._release_pieces()
        carry_coded(before._state.errors, self._state.errors)
        self.choice_notes = before.choice_notes

    def wire_bytes(self, size: int) -> int | None:
        total = sum(
            all_reduce_bytes(part.numel * part.dtype.itemsize, size)
            for number, part in enumerate(self.layout.parts)
            if number not in self._own_parts or self._of(number) is None
        )
        for group in self._groups.values():
            nbytes = group.wire_bytes(size)
            if nbytes is None:
                return None
            total += nbytes - sum(
                all_reduce_bytes(part.numel * part.dtype.itemsize, size)
                for number, part in enumerate(self.layout.parts)
                if number not in group._own_parts
            )
        return total

    # -- what is chosen

    def _sum_ended(self, x: Flat) -> Stages[None]:
        """Measure, compare or sample after a sum, at the same sum on all workers."""
        state, now = self._state, self.wire.clock.now()
        seconds, ready, self._ready = now - self._ended_at, self._ready, {}
        state.sums += 1
        if state.stage == MEASURES:
            self._ready_times.append({part: at - min(ready.values()) for part, at in ready.items()})
            self._step_seconds = seconds
            if state.sums >= _WARM:
                yield from self._choose((yield from self._measured(x)))
        elif state.stage == TRIES and self._trial is not None:
            self._trial.seconds.append(seconds)
            if state.sums >= (PAIRS + 1) * len(self._trial.plans):
                yield from self._decide(self._trial)
        elif state.stage == TRIES:
            self._begin_again("the run was resumed")
        else:
            yield from self._guard(x)
        self._own = {}
        self._ended_at = self.wire.clock.now()

    def _begin_again(self, why: str) -> None:
        state = self._state
        state.stage, state.sums, state.codecs = MEASURES, 0, [DENSE] * len(self._coded)
        self._trial, self._window, self._ready_times = None, None, []
        self._note(dict.fromkeys(map(str, self._coded), DENSE), f"codecs are measured again: {why}")

    def _at_all(self, numbers: Sequence[float]) -> Stages[list[list[float]]]:
        """Return the numbers of every worker."""
        of_all = yield self.wire.all_gather(torch.tensor(numbers, dtype=torch.float64))
        return [x.tolist() for x in of_all]

    def _measured(self, x: Flat) -> Stages[list[dict[str, Cost]]]:
        """Return the seconds of each coded part under each codec, of the slowest worker, and keep those of the wire."""
        seconds = dict[tuple[int, str], tuple[float, float, float]]()
        for part, codec in self._pairs():
            seconds[part, codec] = yield from self._seconds_of(part, codec, x)
        of_all = yield from self._at_all([s for of_pair in seconds.values() for s in of_pair])
        slowest = iter([max(column) for column in zip(*of_all, strict=True)])
        costs = {pair: Cost(next(slowest), next(slowest), next(slowest)) for pair in seconds}
        self._wire_seconds = costs[self._largest, DENSE].wire
        return [
            {codec: cost for (of_part, codec), cost in costs.items() if of_part == part and self._may(part, codec)}
            for part in self._coded
        ]

    def _pairs(self) -> list[tuple[int, str]]:
        return [(part, codec) for codec in (DENSE, *self._candidates) for part in self._coded]

    def _may(self, part: int, codec: str) -> bool:
        return f"{part}:{codec}" not in self._state.barred

    @property
    def _largest(self) -> int:
        return max(self._coded, key=lambda part: self.layout.parts[part].numel)

    def _seconds_of(self, part: int, codec: str, x: Flat) -> Stages[tuple[float, float, float]]:
        """Return the seconds of a sum of one part, twice, and of these the second: to encode, to carry, to decode."""
        clock, numbers = self.wire.clock, x.parts[part]
        numbers = torch.nan_to_num(numbers, nan=0.0, posinf=0.0, neginf=0.0)
        group = None if codec == DENSE else self._group(codec, [part], scratch(self.layout, part))
        times = (0.0, 0.0, 0.0)
        for _ in range(2):
            own = numbers / self.wire.size
            yield self.wire.all_reduce(torch.zeros(1))  # from here on all begin together
            begin = clock.now()
            work = self.wire.all_reduce(own) if group is None else group._launched(part, own)
            encoded = clock.now()
            result = yield work
            arrived = clock.now()
            if group is not None:
                yield from group._finish({part: own}, {part: result}) or ()
            times = encoded - begin, arrived - encoded, clock.now() - arrived
        return times

    def _choose(self, costs: list[dict[str, Cost]]) -> Stages[None]:
        """Begin to try the choices that are expected to pay, or stay with dense sums."""
        count = len(self._ready_times)
        own = [sum(ready[part] for ready in self._ready_times) / count for part in self._coded]
        of_all = yield from self._at_all([*own, self._step_seconds])
        slowest = [max(column) for column in zip(*of_all, strict=True)]
        self._ready_by_part, self._step_seconds = slowest[:-1], slowest[-1]
        self._costs, self._ready_times = costs, []
        self._try(self._choices())

    def _choices(self) -> list[list[str]]:
        return choices(self._ready_by_part, self._costs, DENSE, step=self._step_seconds)

    def _try(self, plans: list[list[str]]) -> None:
        state = self._state
        state.sums = 0
        if not plans:
            self._run([DENSE] * len(self._coded), "no codec is expected to shorten a step")
            return
        state.stage, self._trial = TRIES, Trial([[DENSE] * len(self._coded), *plans])

    def _decide(self, trial: Trial) -> Stages[None]:
        """Keep the fastest choice that is faster than dense sums beyond chance, on the workers' mean seconds."""
        of_all = yield from self._at_all(trial.seconds)
        means = [sum(column) / len(column) for column in zip(*of_all, strict=True)]
        means = means[len(trial.plans) : len(trial.plans) * (PAIRS + 1)]  # the first of each has a new memory
        dense, *others = (means[place :: len(trial.plans)] for place in range(len(trial.plans)))
        gains = [gain(dense, coded) for coded in others]
        best = max(gains, key=lambda g: g.middle)
        self._trial = None
        if best.low > 1:
            plan = trial.plans[1 + gains.index(best)]
            self._run(plan, f"a step is {_in_words(best)} as fast as with dense sums")
        else:
            self._run([DENSE] * len(self._coded), f"a step with codecs is only {_in_words(best)} as fast")

    def _run(self, plan: list[str], why: str) -> None:
        state = self._state
        state.stage, state.sums, state.codecs = RUNS, 0, list(plan)
        self._window = None
        self._note(dict(zip(map(str, self._coded), plan, strict=True)), why)

    # -- what guards it

    def _guard(self, x: Flat) -> Stages[None]:
        """Sample the agreement in the first window, and in one every `every` sums; then measure the wire."""
        at, is_coded = self._state.sums % self.settings.every, set(self._plan) != {DENSE}
        if at == 1 and is_coded:
            self._window = Window()  # from the next sum on
        elif self._window is not None:
            self._window.add(
                {part: (own, x.parts[part]) for part, own in self._own.items() if self._of(part) is not None}
            )
            if self._window.count == self.settings.window:
                window, self._window = self._window, None
                if (yield from self._all_agree(window)):
                    yield from self._look_at_wire(x)
        elif at == 1 and self._state.sums > 1:
            yield from self._look_at_wire(x)

    def _all_agree(self, window: Window) -> Stages[bool]:
        """Return whether the results agree with dense sums; where they do not, choose without their codecs."""
        worst, missing = 1.0, list[str]()
        works = {part: self.wire.all_reduce(own) for part, own in window.own.items()}
        for part, work in works.items():
            cosine = cosine_of((yield work), window.result[part])
            worst = min(worst, cosine)
            if cosine < self.settings.agreement:
                missing.append(f"{part}:{self._codec_of(part)}")
        if not missing:
            return True
        self._state.barred = [*self._state.barred, *missing]
        why = f"the cosine of sums and dense sums over {window.count} steps is {worst:.2f}"
        if not self._costs:
            self._begin_again(why)
            return False
        self._costs = [
            {codec: cost for codec, cost in of_part.items() if self._may(part, codec)}
            for part, of_part in zip(self._coded, self._costs, strict=True)
        ]
        self._note(dict.fromkeys(map(str, self._coded), DENSE), f"codecs are chosen again: {why}")
        self._state.codecs = [DENSE] * len(self._coded)
        self._try(self._choices())
        return False

    def _look_at_wire(self, x: Flat) -> Stages[None]:
        _, own, _ = yield from self._seconds_of(self._largest, DENSE, x)
        seconds = max(column for (column,) in (yield from self._at_all([own])))
        before, self._wire_seconds = self._wire_seconds, self._wire_seconds or seconds
        if before and not before / _BAND < seconds < before * _BAND:
            self._begin_again(f"a dense part takes {seconds:.3g} s, and took {before:.3g} s")

    # -- for sums that are formed again

    def message(self, x: Flat) -> tuple[Tensor, ...]:
        """Return the dense parts: what codecs have left out stays, and a window or trial under way ends."""
        self.retract()
        self._trial, self._window, self._own = None, None, {}
        if self.wire.dead and self._state.codecs != (dense := [DENSE] * len(self._coded)):
            self._state.codecs = dense
            self._note(
                dict.fromkeys(map(str, self._coded), DENSE), "a worker has died, and sums are formed by messages"
            )
        return x.parts


def _in_words(gain: Gain) -> str:
    return f"{gain.middle:.2f} times ({gain.low:.2f} to {gain.high:.2f})"
