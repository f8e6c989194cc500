"""What happens to a member: messages of others, what its own worker does, and time that passes.

A member is what these have made of it, in their order, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from quorate.core.vectors import Flat
from quorate.rounds.member import Member
from quorate.rounds.pending import PendingGradients


def happen(member: Member, event: Mapping[str, Any], vector: Flat | None = None, tensors: Sequence[Tensor] = ()) -> Any:
    """`event` is JSON: `what`, the time `now`, and what goes with it; `vector` or `tensors` came with a message."""
    what, now = event["what"], event["now"]
    if what == "message":
        header = dict(event["header"])
        if header["kind"] == "copy":
            header["tensors"] = tensors
        member.received(event["source"], header, vector, now)
    elif what == "passed":
        member.passed(now)
    elif what == "died":
        member.have_died(event["ranks"], now)
    elif what == "lease":
        return member.term_to_take(event["held"], now)
    elif what == "stand":
        member.stand(event["term"], now)
    else:
        _said(member, event["said"], now)
    return None


def _said(member: Member, said: dict[str, Any], now: float) -> None:
    """By the training thread."""
    if "note" in said:
        member.note(said, now)
    elif "jump" in said:
        member.jump(said["jump"])
    elif "save" in said:
        member.keeping.wanted = max(member.keeping.wanted, said["save"])
        member.ping()
    elif "wish" in said:
        member.wish = said["wish"]
        member.ping()
    elif "keep" in said:
        member.keeping.keep(member.applied)
    elif "restore" in said:
        member.restore()


def add(member: Member, vector: Flat, about: Mapping[str, Any]) -> None:
    """A gradient waits for a round from now on. Whoever shares the member between threads locks."""
    assert isinstance(member.pending, PendingGradients), "fragments are handed in"
    member.pending.add(vector, **about)
