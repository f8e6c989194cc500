"""How one that was about to lead takes office, once enough have said where they are."""

from __future__ import annotations

from collections.abc import Collection

from quorate.rounds.inquiry import Inquiry
from quorate.rounds.leader import Leader
from quorate.rounds.log import Round


def take_office(leader: Leader, inquiry: Inquiry, held: Round | None, dead: Collection[int], now: float) -> None:
    """`leader` leads, of those that have answered, and proposes what is `held`; the `dead` are known."""
    leader.are_absent(set(leader.agreed.ranks) - inquiry.states.keys())
    leader.have_died(dead, now)
    leader.holdings.know(inquiry.states)
    for rank, state in inquiry.states.items():
        leader.noted(rank, {**state, **state["did"]}, now)
        leader.holdings.bring_up(rank, state, now)
    for source, header in [(source, header) for source, header in inquiry.early if source not in dead]:
        leader.heard(source, header, now)
        leader.noted(source, header, now)
    if held is not None:
        leader.proposes(held, inquiry.holders(held.number, held.term), now)
    leader.advance(now)
