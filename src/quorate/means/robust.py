"""`Robust`: an aggregation rule in place of the mean; each worker applies it to one piece of all vectors.

Idea: A part is cut into as many pieces as there are workers, and each piece goes to the worker that owns it, while the
backward pass still computes the rest. Owners compute the inner products of their pieces, and these are summed: so all
workers know the distances between whole vectors, and make the same choice or weights. Each owner then combines its
pieces, and sends the result to all. Non-finite vectors are left out first, and so are workers that have no gradient.

Cost: With P workers and n bytes each worker sends (P - 1) / P n in the first exchange, which overlaps with the backward
pass. It sends as much in the second, as in an all-reduce, and P^2 + P numbers between the two. P^2 / P n products. On
one host nothing is copied on the way, and owners write their results where the vectors lie; elsewhere two vectors of
memory. A rule that starts from its newest result takes a P-th of a vector more: each owner keeps its piece.

When it loses: Where no worker is wrong: it is noisier than the mean, and on one host the mean is formed in shared
memory. Other messages of workers are trusted: how many gradients there are, who stops, who saves. A rule protects
against wrong gradients, not against workers that do harm by other means.

Paper: none of its own; the rules have theirs. That distances between whole vectors are sums over pieces is also used by
El-Mhamdi, Guerraoui, Guirguis and Rouault, "Genuinely distributed Byzantine machine learning", PODC 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quorate.aggregation.distances import far_rows
from quorate.aggregation.outcome import Outcome
from quorate.aggregation.rows import Rows, matrix
from quorate.aggregation.rule import Rule, finite_rows, mixed_rows
from quorate.aggregation.votes import differing, vote
from quorate.core.codec import Draw
from quorate.core.contracts import Wire
from quorate.core.errors import Mismatch, ranks_in_words
from quorate.core.redundancy import Redundancy
from quorate.core.resize import kept
from quorate.core.vectors import Flat, Layout, has_masks
from quorate.means.centre import Centre, OwnedCentre, WholeCentre
from quorate.means.owned_pieces import Made, OwnedPieces
from quorate.means.reducer import Reducer


@dataclass(kw_only=True)
class RobustState:
    """The centre of a rule, and the number of its results."""

    number: int = kept("same", default=0)
    """The number of results so far; random numbers are drawn for each."""
    newest: dict[str, Tensor] = kept("total", default_factory=dict)
    """The newest result by tensor, flat: the piece of this worker, and zeros. Empty where the rule has no centre, and
    once a sum has begun since the state was read."""


class Robust(OwnedPieces):
    """The result of `rule` for the vectors of all workers, in place of P times their mean.

    Where groups of workers compute the same batch (`redundancy`), each group votes first, and the rule combines the
    elected vectors. Cost per worker: `wire_bytes` sent; as in an all-reduce, and P^2 + P numbers of 8 bytes; with votes
    twice as many. Raises `Mismatch` for a group without a majority, unless it may be left out.
    """

    def __init__(
        self,
        layout: Layout,
        wire: Wire,
        rule: Rule,
        seed: int,
        redundancy: Redundancy | None = None,
        *,
        forms_whole_sums: bool = False,
        unit: float = 1.0,
    ) -> None:
        """With `forms_whole_sums` each worker forms full results from the vectors of others.

        `unit`: the factor by which vectors were multiplied before; the result is divided by it.
        """
        super().__init__(layout, wire)
        self.rule, self._seed, self._state = rule, seed, RobustState()
        self._redundancy = Redundancy() if redundancy is None else redundancy
        self._from: Centre | None = None
        if rule.has_centre:
            self._from = WholeCentre(layout) if forms_whole_sums else OwnedCentre(layout, wire)
            self._state.newest = self._from.entries(is_asked=False)
        self._unit = unit
        self._is_formed = False
        """Whether the newest sum has used the vector of any worker."""

    @property
    def state(self) -> RobustState:
        self.commit()
        if self._from is not None:
            self._state.newest = self._from.entries(is_asked=True)
        return self._state

    def share(self, state: RobustState) -> None:
        """Keep the centre in `state`, in which another reducer keeps more."""
        self._state = state

    def end(self) -> None:
        """End a sum that another reducer has begun: its result counts when the next one begins."""
        self._is_over = True

    def follows(self, before: Reducer) -> None:
        assert isinstance(before, Robust)
        old = before.state
        self._state.number = old.number
        if self._from is not None and not (has_masks(self.layout) or has_masks(before.layout)):
            self._state.newest = dict(old.newest)

    def commit(self) -> None:
        """Make the newest sum count: its result becomes the centre."""
        if self._from is not None:
            self._from.see(self._state.newest)
            self._state.newest = self._from.entries(is_asked=False)
        if self._is_over:
            self._state.number += 1
            if self._from is not None:
                self._from.commit()
            self._is_over = False

    def divisor(self, size: int) -> float:
        """Return 1: the rule looks at vectors in the unit of a gradient, in which its settings are."""
        return 1.0

    def factor(self, size: int, weight: float) -> float:
        return 1.0

    # -- of pieces

    def _draw(self) -> Draw:
        return Draw(seed=self._seed, round=self._state.number)

    def _measured_numbers(self, size: int) -> int:
        return size * size * (2 if self._redundancy.groups else 1)

    def _measured(self, rows: Mapping[int, Rows], counts: Tensor, ranks: Sequence[int], draw: Draw) -> Tensor:
        """Return the inner products of all pairs; with votes also how many pieces of a pair differ."""
        groups = self._groups(ranks)
        measured = torch.zeros(2 if groups else 1, len(ranks), len(ranks), dtype=torch.float64)
        for x in rows.values():
            measured[0] += x.products(is_exact=self.rule.is_exact)
            if groups:
                for _, own in x.slices():
                    measured[1] += differing(matrix(own), groups)
        return measured if groups else measured[0]

    def _rows(
        self, part: int, vectors: Sequence[Tensor], counts: Tensor, piece: slice, made: Callable[..., Rows]
    ) -> Rows:
        return super()._rows(part, vectors, counts if self._unit == 1.0 else counts * self._unit, piece, made)

    def _groups(self, ranks: Sequence[int]) -> list[list[int]]:
        """Return the places in `ranks` of each group that votes."""
        redundancy = self._redundancy
        groups = [redundancy.group_of(rank, self.wire.size) for rank in ranks] if redundancy.groups else []
        return [[place for place, own in enumerate(groups) if own == group] for group in range(redundancy.groups)]

    def _decided(self, measured: Tensor, counts: Tensor, ranks: Sequence[int]) -> Made:
        """Choose the rows that count, and mix them by the rule for so many."""
        groups = self._groups(ranks)
        gram = measured[0] if groups else measured
        here, finite = counts > 0, finite_rows(gram)
        keep, alike = here & finite, {place: [place] for place in range(len(ranks))}
        wrong = [rank for place, rank in enumerate(ranks) if here[place] and not finite[place]]
        candidates, left_out, outvoted = int(here.sum()), len(wrong), list[int]()
        if groups:
            votes = [vote(measured[1], group, keep.tolist()) for group in groups]
            alike = {elected.winners[0]: list(elected.winners) for elected in votes if elected.winners}
            for group, elected in zip(groups, votes, strict=True):
                if here[group].any() and not elected.winners and self._redundancy.decides == "all":
                    raise Mismatch(_no_majority([ranks[place] for place in group]))
                outvoted += [ranks[place] for place in elected.voters if place not in elected.winners]
            candidates = sum(bool(here[group].any()) for group in groups)
            left_out = candidates - len(alike)
            keep = torch.tensor([place in alike for place in range(len(ranks))])
        rule = self._rule_of(candidates, left_out)
        mixing = rule.mixing(gram[keep][:, keep], self._draw()) if keep.any() else None
        chosen = torch.zeros(len(ranks), dtype=torch.float64)
        chosen[keep] = 1 / max(1, int(keep.sum())) if mixing is None else mixing.mean(0)
        each = [0.0] * len(ranks)
        for place, equal in alike.items():
            for other in equal:
                each[other] = float(chosen[place]) / len(equal)
        weights = [each[ranks.index(rank)] if rank in ranks else 0.0 for rank in range(self.wire.size)]
        absent = [rank for rank in range(self.wire.size) if rank not in ranks or not here[ranks.index(rank)]]
        kept_ranks = [rank for place, rank in enumerate(ranks) if keep[place]]
        far = [kept_ranks[place] for place in far_rows(gram[keep][:, keep])] if self.rule.f else []
        self.newest = Outcome(absent, wrong, outvoted, far, weights=weights)
        self._is_formed = bool(keep.any())

        places = keep.nonzero().flatten().tolist()

        def made(part: int, rows: Rows, into: Sequence[Tensor]) -> None:
            """Write zeros where no worker has a gradient, and NaN where no gradient is finite."""
            if places:
                mixed_rows(rows, places, mixing, rule, into)
                return
            for x in into:
                x.fill_(torch.nan if wrong else 0.0)

        return made

    def _formed(self, parts: Sequence[Tensor], ranks: Sequence[int]) -> None:
        if self._from is not None and self._is_formed:
            self._from.formed(parts, ranks)

    def _room(self, part: int) -> Tensor | None:
        return self._from.room(part) if self._from is not None and self._is_formed else None

    def _centre(self, part: int, here: slice) -> Tensor | None:
        return None if self._from is None else self._from.looked_from(part, here)

    # -- for sums that are formed again

    def message(self, x: Flat) -> tuple[Tensor, ...]:
        return x.parts if self._from is None else (*x.parts, *self._from.message())

    def sum_of(
        self, messages: Sequence[tuple[Tensor, ...]], ranks: Sequence[int], hosts: Sequence[int], like: Flat
    ) -> Flat:
        count = len(like.parts)
        centres = [message[count:] for message in messages if len(message) > count]
        if self._from is not None and centres:
            self._from.gathered(centres)
        return super().sum_of([message[:count] for message in messages], ranks, hosts, like)

    def _rule_of(self, count: int, excluded: int) -> Rule:
        """Return the rule for `count` gradients: its f is reduced by `excluded`, and to what `count` tolerate."""
        most = max(0, self.rule.most_of(count))
        return self.rule.with_f(max(0, min(self.rule.f, most) - excluded))


def _no_majority(ranks: Sequence[int]) -> str:
    return (
        f"{ranks_in_words(ranks)} compute the same batch, and no gradient was sent by more than half of them. Too many "
        "are wrong, or their computations are not the same to the bit (batches that quorate.loader does not assign, "
        "draws of dropout, algorithms that are not deterministic)"
    )
