"""The sum of a round that spans several hosts, formed in pieces, each at another host. Pure: messages in, messages out.

On each host one worker, its head, adds up the vectors of the host. Then the heads do a reduce-scatter and an
all-gather. Each sends piece j of its host's sum (`piece`) to the head that owns it. That head adds up the pieces in
order of hosts and sends the sum (`sum`) to all other heads. A head that has all of them sends the full sum to the
others on its host (`result`). With H hosts and d numbers a host so sends and receives 2 (H - 1) / H d numbers.

If contributions are codes of few bits, and sums of them would be long, heads send each other the codes (`code`). Each
adds up the decoded vectors, in the same order: every host gets the codes of all others.

The leader decides who takes part, in one attempt after the other: a `forming.Plan`. Nothing of an attempt that was
replaced is added to a later one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from quorate.core.fields import Fields, Header
from quorate.core.vectors import Flat, Layout, Part, add_into
from quorate.rounds.forming import Plan
from quorate.rounds.gathering import sum_of
from quorate.rounds.messages import Whole

Send = Callable[[int | None, Header, Flat | None], None]
"""(to, header, vector); None: to the leader."""

KINDS = ("part", "piece", "sum", "code")
"""The messages of other workers than the leader."""


ShareKind = Literal["part", "piece", "sum", "code", "result"]


@dataclass(frozen=True, slots=True)
class Share(Fields):
    """The message of a vector in one attempt. A `part` is of one worker, to the head of its host. A `piece` of a host's
    sum is sent to the head that owns it, and a `sum` of pieces from there. A `code` is of one worker, to other heads; a
    `result` is sent to the others on a host.
    """

    kind: ShareKind
    number: int
    is_pause: bool
    attempt: int
    piece: int | None = None  # in a piece or a sum: its place among `of` pieces
    of: int | None = None
    rank: int | None = None
    coded: bool | None = None

    def header(self) -> dict[str, Any]:
        return self.header_without_none()


class Exchange:
    """The exchange of one round, as worker `rank` sees it, the head of its host if a plan says so. `blank` makes
    vectors to form sums in; `decode` decodes the code of a worker, for a round that is a pause or not. Methods return
    the sum and its attempt once, when it is there."""

    def __init__(
        self,
        rank: int,
        send: Send,
        blank: Callable[[Layout], Flat],
        layout: Callable[[bool], Layout],
        decode: Callable[[Flat, int, bool], Flat],
    ) -> None:
        self._rank, self._send, self._blank, self._layout, self._decode = rank, send, blank, layout, decode
        self.plan: Plan | None = None
        self._parts: dict[int, Flat] = {}
        self._early: list[tuple[int, Share, Flat]] = []
        self._begin()

    def _begin(self) -> None:
        self._pieces: dict[int, Flat] = {}  # the pieces that this head owns, by place of the host that sent them
        self._codes: dict[int, Flat] = {}
        self._summed: set[int] = set()
        self._has_given = False
        self._total: Flat | None = None

    # -- what is to be done

    def form(self, plan: Plan, own: Flat | None) -> tuple[int, Flat] | None:
        """Become the head of a host by `plan`; `own` is the worker's own contribution."""
        if self.plan is not None and plan.attempt <= self.plan.attempt:
            return None
        self.plan = plan
        self._begin()
        if len(plan.heads) > 1 and not plan.codes:
            # A new one: pieces of the old one may be on their way.
            self._total = self._blank(self._layout(plan.is_pause))
        if own is not None:
            self._parts[self._rank] = own
        early, self._early = self._early, []
        total = self._give()
        for source, share, vector in early:
            total = self.received(source, share, vector) or total
        return total

    def received(self, source: int, share: Share, vector: Flat) -> tuple[int, Flat] | None:
        """Take in a message of one of `KINDS`."""
        kind, attempt = share.kind, share.attempt
        if kind == "part":
            self._parts[source] = vector
            return self._give()
        if self.plan is None or attempt > self.plan.attempt:
            self._early.append((source, share, vector))
            return None
        if attempt < self.plan.attempt or source not in self.plan.heads:
            return None
        if kind == "code":
            assert share.rank is not None
            self._codes[share.rank] = vector
            return self._add_up_codes()
        place = self.plan.heads.index(source)
        if kind == "piece":
            return self._piece(place, vector)
        assert share.piece is not None
        return self._sum(share.piece, vector)

    # -- inside

    @property
    def _place(self) -> int:
        assert self.plan is not None
        return self.plan.heads.index(self._rank)

    def _give(self) -> tuple[int, Flat] | None:
        plan = self.plan
        if plan is None or self._has_given or not self._parts.keys() >= set(plan.contributors):
            return None
        self._has_given = True
        if plan.contributors not in ([], [self._rank]):
            self._send(None, Whole(plan.number, plan.attempt).header(), None)
        if plan.codes:
            return self._give_codes(plan)
        own = sum_of([self._parts[rank] for rank in sorted(plan.contributors)], self._blank)
        if own is None:
            return None
        if len(plan.heads) == 1:
            self._total = own
            return self._is_there()
        total, of = None, len(plan.owners)
        for place in self._after_this_one():
            if place in plan.owners:
                piece = plan.owners.index(place)
                share = self._share("piece", piece=piece, of=of)
                self._send(plan.heads[place], share.header(), piece_of(own, piece, of))
        if self._place in plan.owners:
            total = self._piece(self._place, piece_of(own, plan.owners.index(self._place), of))
        return total

    def _give_codes(self, plan: Plan) -> tuple[int, Flat] | None:
        for place in self._after_this_one():
            for rank in sorted(plan.contributors):
                share = self._share("code", rank=rank, coded=True)
                self._send(plan.heads[place], share.header(), self._parts[rank])
        self._codes |= {rank: self._parts[rank] for rank in plan.contributors}
        return self._add_up_codes()

    def _add_up_codes(self) -> tuple[int, Flat] | None:
        plan = self.plan
        assert plan is not None
        if not self._codes.keys() >= {rank for host in plan.codes for rank in host}:
            return None
        hosts = ([self._decode(self._codes[rank], rank, plan.is_pause) for rank in host] for host in plan.codes)
        self._total = sum_of([total for own in hosts if (total := sum_of(own, self._blank)) is not None], self._blank)
        self._codes.clear()
        return self._is_there()

    def _piece(self, place: int, vector: Flat) -> tuple[int, Flat] | None:
        plan = self.plan
        assert plan is not None and self._total is not None
        self._pieces[place] = vector
        if not self._pieces.keys() >= set(plan.giving):
            return None
        piece, of = plan.owners.index(self._place), len(plan.owners)
        there = piece_of(self._total, piece, of)
        first, *rest = [self._pieces[other] for other in plan.giving]
        if rest:
            add_into(first, rest[0], there)
        else:
            there.copy_(first)
        for other_piece in rest[1:]:
            there.add_(other_piece)
        self._pieces.clear()
        for other in self._after_this_one():
            self._send(plan.heads[other], self._share("sum", piece=piece, of=of).header(), there)
        return self._has(piece)

    def _sum(self, piece: int, vector: Flat) -> tuple[int, Flat] | None:
        plan = self.plan
        assert plan is not None and self._total is not None
        piece_of(self._total, piece, len(plan.owners)).copy_(vector)
        return self._has(piece)

    def _has(self, piece: int) -> tuple[int, Flat] | None:
        assert self.plan is not None
        self._summed.add(piece)
        return self._is_there() if len(self._summed) == len(self.plan.owners) else None

    def _is_there(self) -> tuple[int, Flat]:
        assert self.plan is not None and self._total is not None
        self.hand_on(self._total)
        return self.plan.attempt, self._total

    def hand_on(self, total: Flat) -> None:
        """Send the sum to the others on this host."""
        plan = self.plan
        for rank in () if plan is None else plan.others:
            self._send(rank, self._share("result").header(), total)

    def _after_this_one(self) -> list[int]:
        assert self.plan is not None
        count = len(self.plan.heads)
        return [(self._place + step) % count for step in range(1, count)]

    def _share(self, kind: ShareKind, **about: Any) -> Share:
        assert self.plan is not None
        return Share(kind, self.plan.number, self.plan.is_pause, self.plan.attempt, **about)


def _cut(numel: int, piece: int, of: int) -> tuple[int, int]:
    return piece * numel // of, (piece + 1) * numel // of


def layout_of_piece(layout: Layout, piece: int, of: int) -> Layout:
    """Return the layout of piece `piece`, one of `of`, of vectors laid out as `layout`."""
    cuts = [(_cut(part.numel, piece, of), part) for part in layout.parts]
    return Layout((), tuple(Part(end - begin, part.dtype, part.device) for (begin, end), part in cuts), 0)


def piece_of(vector: Flat, piece: int, of: int) -> Flat:
    """Return piece `piece`, one of `of`: views."""
    views = [part[slice(*_cut(part.numel(), piece, of))] for part in vector.parts]
    return Flat(views, layout_of_piece(vector.layout, piece, of))
