"""Rounds of fragments as one worker hands them in and takes them: see `rounds.fragments`."""

from __future__ import annotations

from collections.abc import Sequence

from quorate.core.means import Mean
from quorate.core.vectors import Layout
from quorate.quorums.round_watch import RoundWatch
from quorate.rounds.fragments import Fragments
from quorate.rounds.log import Round


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
