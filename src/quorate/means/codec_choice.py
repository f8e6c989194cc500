"""The codec of each part of a vector that ends an exchange first: the choice, and the memory of `compress="auto"`.

The parts of a gradient become ready one after the other during a backward pass. The thread that computes it also
encodes: what it encodes delays all later parts. The wire carries one part at a time, in their order, while the backward
pass goes on. What has arrived is decoded once the backward pass is over. So with ready times r, and seconds e, w and d
to encode, carry and decode each part,

    sent_p = max(sent_(p-1), r_p + e_1 + ... + e_p) + w_p,    now_p = max(now_(p-1), sent_p) + d_p,

and the exchange ends at the last `now`. A codec that costs more than it saves while nobody waits is not chosen.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from quorate.core.resize import kept
from quorate.core.vectors import Flat, Layout, bare_layout

PAIRS = 6
"""Comparisons of a choice with dense sums, each on consecutive sums."""
_T = 3.163
"""The quantile of Student's t for `PAIRS` differences at 95 %, for two choices that are compared (Bonferroni)."""
_PAYS = 0.01
"""A choice is tried if it is expected to shorten a step by more than this share."""


@dataclass(frozen=True)
class Cost:
    """The seconds of one part under one codec."""

    encode: float
    wire: float
    decode: float


def end_of(ready: Sequence[float], costs: Sequence[Cost]) -> float:
    """Return when the last part is decoded, if each is ready at the time in `ready` but for the delays of encoding."""
    delay, sent, ends = 0.0, 0.0, list[float]()
    for at, cost in zip(ready, costs, strict=True):
        delay += cost.encode
        sent = max(sent, at + delay) + cost.wire
        ends.append(sent)
    now = max(ready, default=0.0) + delay
    for end, cost in zip(ends, costs, strict=True):
        now = max(now, end) + cost.decode
    return now


def best_codecs(ready: Sequence[float], costs: Sequence[Mapping[str, Cost]]) -> list[str]:
    """Return the codec of each part, of those that it has a cost for, with which the exchange ends first.

    From the best choice of one codec for all parts on, single parts are changed as long as that shortens the exchange.
    """
    names = dict.fromkeys(name for of_part in costs for name in of_part)
    uniform = [[name if name in of_part else next(iter(of_part)) for of_part in costs] for name in names]

    def end(names: Sequence[str]) -> float:
        return end_of(ready, [of_part[name] for of_part, name in zip(costs, names, strict=True)])

    best = min(uniform, key=end, default=[])
    shortest, is_better = end(best), True
    while is_better:
        is_better = False
        for part, of_part in enumerate(costs):
            for name in of_part:
                changed = [*best[:part], name, *best[part + 1 :]]
                if (seconds := end(changed)) < shortest * (1 - 1e-9):
                    best, shortest, is_better = changed, seconds, True
    return best


def choices(
    ready: Sequence[float], costs: Sequence[Mapping[str, Cost]], dense: str, *, step: float = 0.0, count: int = 2
) -> list[list[str]]:
    """Return the choices to try beside dense sums, at most `count`: the best one, and the best of one codec alone.

    A choice that is not expected to shorten a step, which takes `step` seconds with dense sums, is left out.
    """
    limit = end_of(ready, [of_part[dense] for of_part in costs]) - _PAYS * step
    names = dict.fromkeys(name for of_part in costs for name in of_part)
    uniform = [[name if name in of_part else dense for of_part in costs] for name in names]
    expected = [
        (end_of(ready, [of_part[name] for of_part, name in zip(costs, choice, strict=True)]), choice)
        for choice in [best_codecs(ready, costs), *uniform]
    ]
    fast = [choice for seconds, choice in sorted(expected, key=lambda pair: pair[0]) if seconds < limit]
    return list(map(list, dict.fromkeys(map(tuple, fast))))[:count]


@dataclass(frozen=True)
class Gain:
    """How many times as fast steps are as with dense sums: the middle, and an interval that has it at 95 %."""

    middle: float
    low: float
    high: float


def gain(dense: Sequence[float], coded: Sequence[float]) -> Gain:
    """Return the gain from the seconds of `PAIRS` sums of each kind, pair by pair."""
    logs = [math.log(seconds / other) for seconds, other in zip(dense, coded, strict=True)]
    middle, width = statistics.fmean(logs), _T * statistics.stdev(logs) / math.sqrt(len(logs))
    return Gain(math.exp(middle), math.exp(middle - width), math.exp(middle + width))


MEASURES, TRIES, RUNS = "measures", "tries", "runs"


@dataclass(kw_only=True)
class AutoCodecState:
    """The memory of one worker, and the choice of all."""

    errors: Flat = kept("sum")
    """The part of this worker's gradients that codecs have left out."""
    owned: Flat = kept("sum")
    """The part of sums in two phases that the second encoding has left out, in the pieces that this worker owns."""
    codecs: list[str] = kept("same")
    """The codec of each coded part."""
    barred: list[str] = kept("same", default_factory=list)
    """Parts and codecs that have not agreed with dense sums, as `part:codec`."""
    stage: str = kept("same", default=MEASURES)
    sums: int = kept("same", default=0)
    """Sums in this stage."""
    draws: dict[str, int] = kept("same", default_factory=dict)
    """Sums of codecs, for their random numbers."""
    size: int = kept("same", default=0)
    """The number of workers among whom pieces were cut."""


@dataclass
class Trial:
    """Choices that take turns, the first one dense, and the seconds of their sums."""

    plans: list[list[str]]
    seconds: list[float] = field(default_factory=list)


@dataclass
class Window:
    """Sums over a window: of this worker's gradients, and of the results, by part."""

    own: dict[int, Tensor] = field(default_factory=dict)
    result: dict[int, Tensor] = field(default_factory=dict)
    count: int = 0

    def add(self, parts: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        """Add a sum: of each part this worker's gradient, and the result."""
        self.count += 1
        for part, numbers in parts.items():
            for sums, x in zip((self.own, self.result), numbers, strict=True):
                sums[part] = x.clone() if part not in sums else sums[part].add_(x)


def scratch(layout: Layout, part: int) -> AutoCodecState:
    """Return a memory of one part, for sums that count nowhere."""
    bare = bare_layout(layout)
    parts = tuple(p if number == part else replace(p, numel=0) for number, p in enumerate(bare.parts))
    of_part = replace(bare, segments=tuple(s for s in layout.segments if s.part == part), parts=parts)
    return AutoCodecState(errors=Flat.zeros(of_part), owned=Flat.zeros(of_part), codecs=[])


def by_name(x: Flat, names: set[str]) -> dict[str, Tensor]:
    """Return the numbers of tensors, as views, by name."""
    segments = enumerate(x.layout.segments)
    return {segment.name: x.segment(index).view(-1) for index, segment in segments if segment.name in names}


def cosine_of(x: Tensor, y: Tensor) -> float:
    """Return the cosine of two vectors; 1 where it has no meaning, as one of them is 0 or not finite."""
    cosine = float(torch.dot(x.double(), y.double()) / (x.double().norm() * y.double().norm()))
    return cosine if math.isfinite(cosine) else 1.0
