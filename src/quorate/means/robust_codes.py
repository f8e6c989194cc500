"""`RobustCodes`: an aggregation rule over the decoded vectors of all workers, in place of the mean.

Idea: Each worker encodes its vector, and remembers what the codec leaves out. Every code goes to all workers
(all-gather), even if codes could be added, because a rule needs each worker's vector by itself. All decode all codes,
and apply the rule to the whole decoded vectors in the order of ranks, so all have the same bits. Parts that are not
coded are sent unchanged. A code that cannot be decoded, or has the wrong length for its codec, counts as a non-finite
vector.

Cost: For a code of c bytes each of P workers sends (P - 1) c, and decodes P codes. The rule needs P vectors of memory,
and P^2 n products on every worker, compared with a P-th of them without a codec. Gathering overlaps with the backward
pass.

When it loses: With many workers: if (P - 1) c is more than the two vectors that are sent without a codec, or computing
distances of whole vectors takes longer than sending them. What the codec leaves out is noise between honest workers, in
which small attacks can hide. If the rule does not choose a vector, its code's error is remembered as if it had, so its
worker does not make up for it.

Paper: none of its own. Compression with error feedback in the presence of wrong workers is studied by Ghosh, Maity,
Kadhe, Mazumdar and Ramchandran, "Communication-efficient and Byzantine-robust distributed learning with error
feedback", 2021.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from quorate.aggregation.outcome import Outcome
from quorate.aggregation.rule import Rule
from quorate.core.codec import Codec, Draw
from quorate.core.contracts import Wire, Work
from quorate.core.resize import kept
from quorate.core.vectors import Flat, Layout, digest_of
from quorate.means.coded import Coded, CodedState
from quorate.means.reducer import Reducer
from quorate.means.robust import Robust, RobustState
from quorate.wire.work import Stages, Together


@dataclass(kw_only=True)
class RobustCodesState(RobustState, CodedState):
    """The memory of the codec of one worker, and the centre of the rule."""

    newest: dict[str, Tensor] = kept("same", default_factory=dict)
    """The newest result by tensor, in full."""


class RobustCodes(Coded):
    """The result of `rule` for the decoded vectors of all workers, in place of P times their mean.

    Vectors are of one layout. Cost per worker: every part is sent to each other worker, those of `codec` as codes.
    """

    _may_abstain: ClassVar[bool] = False

    def __init__(
        self, layout: Layout, wire: Wire, codec: Codec, rule: Rule, seed: int, *, divisor: float = 1.0
    ) -> None:
        """`divisor`: the number by which workers have divided their vectors; the rule multiplies by it."""
        super().__init__(layout, wire, codec, seed)
        self._divisor = divisor
        self._robust = Robust(layout, wire, rule, seed, forms_whole_sums=True, unit=1 / divisor)
        of_rule = self._robust.state
        self._state: RobustCodesState = RobustCodesState(
            memory=self._state.memory, sums=self._state.sums, number=of_rule.number, newest=of_rule.newest
        )
        self._robust.share(self._state)

    @property
    def rule(self) -> Rule:
        """The rule, with the f that was set."""
        return self._robust.rule

    @property
    def outcome(self) -> Outcome:
        return self._robust.outcome

    @property
    def state(self) -> RobustCodesState:
        self.commit()
        _ = self._robust.state  # lends the centre
        return self._state

    def follows(self, before: Reducer) -> None:
        assert isinstance(before, RobustCodes)
        super().follows(before)
        self._robust.follows(before._robust)

    def commit(self) -> None:
        super().commit()
        self._robust.commit()

    def divisor(self, size: int) -> float:
        return self._divisor

    def factor(self, size: int, weight: float) -> float:
        return self._robust.factor(size, weight)

    def _draw(self, part: int, rank: int) -> Draw:
        return super()._draw(part, 0 if self.rule.compares_bits else rank)

    def _first(self, part: int, x: Tensor) -> Work[Any]:
        return self.wire.all_gather(self._encoded(part, x) if part in self._shapes else x.clone())

    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        """Sum a part again: the rule is applied to this part alone, as `Robust` does."""

        def finish(codes: list[Any]) -> Tensor:
            with self.spending("decode"):
                rows = [self._vector(part, code, rank) for rank, code in enumerate(codes[0])]
                x.copy_(self._robust.part_of(part, rows))
            return x

        return Together([self._first(part, x)], finish, self.wire.clock)

    def _summed(self, x: Flat, results: Sequence[Any]) -> Stages[Flat]:
        yield from ()  # there is no further exchange
        messages = list(zip(*results, strict=True))
        formed = self.sum_of(messages, range(len(messages)), range(len(messages)), x)
        for part, into in enumerate(x.parts):
            into.copy_(formed.parts[part])
        return x

    def sum_of(
        self, messages: Sequence[tuple[Tensor, ...]], ranks: Sequence[int], hosts: Sequence[int], like: Flat
    ) -> Flat:
        with self.spending("decode"):
            vectors = [
                tuple(self._vector(part, code, rank) for part, code in enumerate(message))
                for rank, message in zip(ranks, messages, strict=True)
            ]
            if like.layout.header and not self._has_weight(vectors, ranks):
                self._next = {}  # without weight, what its code left out stays as before
            formed = self._robust.sum_of(vectors, ranks, hosts, like)
        self._robust.end()
        return formed

    def _has_weight(self, vectors: Sequence[tuple[Tensor, ...]], ranks: Sequence[int]) -> bool:
        own = vectors[list(ranks).index(self.wire.rank)][-1]
        return float(own[len(own) - self.layout.header]) > 0

    def _vector(self, part: int, code: Tensor, rank: int) -> Tensor:
        """Return the decoded numbers of a code; NaN where it is invalid. Other parts are unchanged."""
        if part not in self._shapes:
            return code
        about, shapes = self.layout.parts[part], self._shapes[part]
        decoded = torch.zeros(about.numel, dtype=about.dtype, device=about.device)
        nbytes = self.codec.wire_bytes(shapes)
        if code.numel() and nbytes is not None and code.nbytes != nbytes:
            return decoded.fill_(math.nan)
        try:
            self._add_code(decoded, code.to(about.device), shapes, self._draw(part, rank))
        except (RuntimeError, IndexError, ValueError):  # bytes that no codec has written
            decoded.fill_(math.nan)
        return decoded

    def _finish(self, into: Mapping[int, Tensor], results: Mapping[int, Any]) -> Stages[None] | None:
        raise AssertionError("parts are not summed one by one")

    def _for_layout(self, layout: Layout) -> Coded:
        assert digest_of(layout) == digest_of(self.layout), "a rule over codes is of one layout"
        return self

    def _is_gathered(self, part: int) -> bool:
        return True
