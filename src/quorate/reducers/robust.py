"""`Robust`: an aggregation rule in the place of the mean, each worker applying it to a piece of all vectors.

Idea: A part is cut into as many pieces as there are workers, and each piece goes to the worker that owns it, while the
backward pass still computes the rest. Owners form the inner products of the pieces they have, and these are summed: so
all know how far whole vectors are from each other, and choose or weigh alike. Each owner then combines its pieces, and
sends the result to all. Vectors that are not finite are left out first; so are workers that have no gradient.

Cost: With P workers and n bytes (P - 1) / P n are sent by each worker in the first exchange, which overlaps with
backward, and as much in the second, as in an all-reduce; P^2 + P numbers between the two. P^2 / P n products, two
vectors of memory, and one more where the rule looks from its newest result.

When it loses: Where nobody is wrong: noise is larger than with the mean, and on one host the mean is formed in shared
memory. What is believed of everyone is the rest: how many gradients there are, who stops, who saves; a rule is for
gradients that are wrong, not for workers that want to do harm by other means.

Paper: none of its own; the rules have theirs. That distances of whole vectors are sums over pieces is used likewise by
El-Mhamdi, Guerraoui, Guirguis and Rouault, "Genuinely distributed Byzantine machine learning", PODC 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from quorate.aggregation.rule import Rule, finite_rows, inner_products, mixed_rows
from quorate.core.codec import Draw
from quorate.core.contracts import Wire, Work
from quorate.core.resize import kept
from quorate.core.vectors import Flat, Layout
from quorate.reducers.reducer import Reducer
from quorate.reducers.remembering import Remembering
from quorate.wire.cost import all_reduce_bytes
from quorate.wire.exchange import sum_in_order
from quorate.wire.work import Together


@dataclass(kw_only=True)
class RobustState:
    """What the rule looks from, the same on all workers."""

    number: int = kept("same", default=0)
    """Results so far; what is drawn is drawn for each."""
    centre: dict[str, Tensor] = kept("same", default_factory=dict)
    """The newest result by the tensor's name, flat; empty where the rule does not look from it."""


@dataclass(frozen=True)
class Outcome:
    """What became of one sum."""

    absent: Sequence[int] = ()
    """Ranks that had no gradient."""
    not_finite: Sequence[int] = ()
    weights: Sequence[float] = field(default=())
    """Of each rank, the mean weight of its vector in what the rule combines."""


class Robust(Remembering):
    """What `rule` makes of the vectors of all workers, in the place of P times their mean.

    Cost per worker: `wire_bytes` sent; as in an all-reduce, and P^2 + P numbers of 8 bytes.
    """

    def __init__(self, layout: Layout, wire: Wire, rule: Rule, seed: int) -> None:
        super().__init__(layout, wire, range(len(layout.parts)))
        self.rule, self._seed, self._state = rule, seed, RobustState()
        for segment in layout.segments if rule.has_centre else ():
            about = layout.parts[segment.part]
            self._state.centre[segment.name] = torch.zeros(segment.numel, dtype=about.dtype, device=about.device)
        self._next: dict[str, Tensor] | None = None
        self._counts = torch.ones(wire.size, dtype=torch.float64)
        """What each worker's newest vector counts."""
        self.newest = Outcome()
        """Of the newest sum."""

    @property
    def state(self) -> RobustState:
        self.commit()
        return self._state

    def follows(self, before: Reducer) -> None:
        """As of `Reducer`: the newest result of tensors that both have."""
        assert isinstance(before, Robust)
        old = before.state
        self._state.number = old.number
        for name, x in self._state.centre.items():
            if name in old.centre and old.centre[name].numel() == x.numel():
                x.copy_(old.centre[name])

    def commit(self) -> None:
        """The newest sum counts: the rule looks from its result."""
        if self._is_over:
            self._state.number += 1
            self._state.centre, self._next = self._next or self._state.centre, None
            self._is_over = False

    def factor(self, size: int, weight: float) -> float:
        """The number of workers, by which each has divided."""
        return float(size)

    def _numbers(self, part: int, layout: Layout) -> int:
        """Of a part, without the header behind the last one."""
        return layout.parts[part].numel - (layout.header if part == len(layout.parts) - 1 else 0)

    def _pieces(self, numbers: int) -> list[tuple[int, int]]:
        """Where each worker's piece of so many begins and ends."""
        size = self.wire.size
        return list(pairwise(round(numbers * rank / size) for rank in range(size + 1)))

    def _launched(self, part: int, x: Tensor) -> Work[Any]:
        """Pieces to their owners; of the last part also the sum of headers, and this worker's own weight."""
        numbers = self._numbers(part, self.layout)
        own = _reals(x[:numbers])
        works: list[Work[Any]] = [
            self.wire.all_to_all([own[begin:end].clone() for begin, end in self._pieces(len(own))])
        ]
        if numbers < x.numel():
            header = x[numbers:].clone()
            works.append(self.wire.all_gather(_reals(header)[:1].double()))
            works.append(self.wire.all_reduce(header))
        return Together(works, lambda found: found, self.wire.clock)

    def _finish(self, into: Mapping[int, Tensor], found: Mapping[int, Any]) -> None:
        order = sorted(into)
        weights = next((some[1] for some in found.values() if len(some) > 1), None)
        if weights is not None:  # else a part is summed again, without the header
            self._counts = torch.cat([one.reshape(1).cpu() for one in weights])
        counts = self._counts
        with self.spending("decode"):
            rows = {part: torch.stack(list(found[part][0])) for part in order}
            centre = {part: self._centre(part, rows[part]) for part in order}
            for part in order:
                rows[part] = _relative(rows[part], counts, centre[part])
            gram = sum((inner_products(rows[part]) for part in order), torch.zeros(len(counts), len(counts)).double())
        gram = self.wire.all_reduce(gram).wait()
        with self.spending("decode"):
            keep, rule, mixing = self._decided(gram, counts)
            mine = {}
            for part in order:
                mine[part] = self._combined(rows[part], keep, rule, mixing, centre[part])
        works = {part: self.wire.all_gather(mine[part]) for part in order}
        for part, work in works.items():
            numbers = self._numbers(part, self.layout)
            _reals(into[part][:numbers]).copy_(torch.cat(list(work.wait())))
            if numbers < into[part].numel() and len(found[part]) > 1:
                into[part][numbers:] = found[part][2]
        if self.rule.has_centre and bool(keep.any()) and len(order) == len(self.layout.parts):
            self._next = self._by_name([into[part] for part in order])

    def _combined(self, rows: Tensor, keep: Tensor, rule: Rule, mixing: Tensor | None, centre: Tensor | None) -> Tensor:
        """Zeros where nobody has a gradient, and NaN where nobody's is finite."""
        if not bool(keep.any()):
            return torch.full_like(rows[0], torch.nan if self.newest.not_finite else 0.0)
        found = mixed_rows(rows[keep.to(rows.device)], mixing, rule)
        return found if centre is None else found.add_(centre)

    def _centre(self, part: int, rows: Tensor) -> Tensor | None:
        """This worker's piece of where the rule looks from."""
        if not self.rule.has_centre:
            return None
        whole = self._whole_centre(part)
        begin, end = self._pieces(len(whole))[self.wire.rank]
        return whole[begin:end].to(rows)

    def _whole_centre(self, part: int) -> Tensor:
        """Of one part, as real numbers."""
        about = self.layout.parts[part]
        found = torch.zeros(self._numbers(part, self.layout), dtype=about.dtype, device=about.device)
        for index in self.layout.by_part[part]:
            one = self.layout.segments[index]
            found[one.offset : one.offset + one.numel] = self._state.centre[one.name].to(found)
        return _reals(found)

    def _by_name(self, parts: Sequence[Tensor]) -> dict[str, Tensor]:
        """What the newest result is, by tensor."""
        return {one.name: parts[one.part][one.offset : one.offset + one.numel].clone() for one in self.layout.segments}

    def _decided(self, gram: Tensor, counts: Tensor) -> tuple[Tensor, Rule, Tensor | None]:
        """Which rows count, the rule for so many, and how it mixes them."""
        here, finite = counts > 0, finite_rows(gram)
        keep = here & finite
        wrong = [rank for rank in range(len(counts)) if here[rank] and not finite[rank]]
        rule = self._rule_of(int(here.sum()), len(wrong))
        mixing = (
            rule.mixing(gram[keep][:, keep], Draw(seed=self._seed, round=self._state.number)) if keep.any() else None
        )
        each = torch.zeros(len(counts), dtype=torch.float64)
        each[keep] = 1 / max(1, int(keep.sum())) if mixing is None else mixing.mean(0)
        absent = [rank for rank in range(len(counts)) if not here[rank]]
        self.newest = Outcome(absent, wrong, each.tolist())
        return keep, rule, mixing

    def _rule_of(self, count: int, excluded: int) -> Rule:
        """For `count` gradients: f is what it was, less what was left out, and no more than so many bear."""
        most = max(0, self.rule.most_of(count))
        return self.rule.with_f(max(0, min(self.rule.f, most) - excluded))

    def wire_bytes(self, size: int) -> int:
        """Bytes this worker sends for one sum among `size` workers."""
        sent, mine = 0, self.wire.rank
        for number, part in enumerate(self.layout.parts):
            width = 2 if part.dtype.is_complex else 1
            pieces = self._pieces(width * self._numbers(number, self.layout))
            each = [(end - begin) * part.dtype.itemsize // width for begin, end in pieces]
            sent += sum(each) - each[mine] + (size - 1) * each[mine]
            if number == len(self.layout.parts) - 1 and self.layout.header:
                sent += 8 * (size - 1) + all_reduce_bytes(self.layout.header * part.dtype.itemsize, size)
        return sent + all_reduce_bytes(8 * size * size, size)

    # -- for sums that are formed anew

    def sum_of(
        self, found: Sequence[tuple[Tensor, ...]], ranks: Sequence[int], hosts: Sequence[int], like: Flat
    ) -> Flat:
        """As of `Reducer`: the rule on whole vectors, those of `ranks`."""
        order = sorted(range(len(ranks)), key=lambda place: ranks[place])
        numbers = [self._numbers(part, like.layout) for part in range(len(like.parts))]
        counts = torch.ones(len(order), dtype=torch.float64)
        if like.layout.header:
            counts = torch.cat([_reals(found[place][-1][numbers[-1] :])[:1].double().cpu() for place in order])
        rows, gram = list[Tensor](), torch.zeros(len(order), len(order), dtype=torch.float64)
        centre = [self._whole_centre(part) for part in range(len(numbers))] if self.rule.has_centre else None
        for part, into in enumerate(like.parts):
            stacked = torch.stack([_reals(found[place][part][: numbers[part]].to(into.device)) for place in order])
            rows.append(_relative(stacked, counts, None if centre is None else centre[part].to(stacked)))
            gram += inner_products(rows[part])
        keep, rule, mixing = self._decided(gram, counts)
        sums = Flat.zeros(like.layout)
        for part, into in enumerate(sums.parts):
            origin = None if centre is None else centre[part].to(rows[part])
            _reals(into[: numbers[part]]).copy_(self._combined(rows[part], keep, rule, mixing, origin))
            if numbers[part] < into.numel():
                tails = [found[place][part][numbers[part] :].to(into.device) for place in order]
                into[numbers[part] :] = sum_in_order(tails, [hosts[place] for place in order])
        if self.rule.has_centre and bool(keep.any()):
            self._next = self._by_name(sums.parts)
        return sums


def _reals(x: Tensor) -> Tensor:
    """Complex numbers as twice as many real ones, in the same memory; others as they are."""
    return torch.view_as_real(x).flatten() if x.is_complex() else x


def _relative(rows: Tensor, counts: Tensor, centre: Tensor | None) -> Tensor:
    """Rows as if each counted 1, seen from the centre."""
    if bool(((counts != 1) & (counts > 0)).any()):
        rows = rows / counts.clamp_min(torch.finfo(torch.float32).tiny)[:, None].to(rows)
    return rows if centre is None else rows - centre
