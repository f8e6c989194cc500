"""The members of a run on its board, which `core.members.Members` is read from, and nothing else.

`gone` holds their history since the start, a list in JSON: each `Death` that the others have outlived, and each
`Coming`, in the order in which that was noticed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quorate.core.contracts import Board
from quorate.core.fields import Fields, Header
from quorate.core.members import Members

GONE = "gone"


@dataclass(frozen=True, slots=True)
class Death(Fields):
    """A worker that died, while the others went on."""

    rank: int
    host: str
    reason: str

    @property
    def in_words(self) -> str:
        """`rank 2 (host h) was killed by signal 9 (SIGKILL)`."""
        return f"rank {self.rank} (host {self.host}) {self.reason}"


@dataclass(frozen=True, slots=True)
class Coming(Fields):
    """A worker that has joined."""

    rank: int

    def header(self) -> dict[str, int]:
        return {"came": self.rank}

    @classmethod
    def read(cls, header: Header, **others: Any) -> Coming:
        return cls(header["came"])


def history_in(written: bytes | None) -> list[Death | Coming]:
    """Return the history in the value of the key `gone`."""
    events = [] if written is None else json.loads(written)
    return [Coming.read(event) if "came" in event else Death.read(event) for event in events]


def history_to_bytes(history: Sequence[Death | Coming]) -> bytes:
    """Return the value of the key `gone`."""
    return json.dumps([event.header() for event in history]).encode()


def members_in(written: bytes | None, size: int) -> Members:
    """Return the members in the value of the key `gone`; `size` workers start."""
    history = history_in(written)
    return Members(
        size,
        frozenset(event.rank for event in history if isinstance(event, Coming)),
        frozenset(event.rank for event in history if isinstance(event, Death)),
    )


def members_on(board: Board, size: int) -> Members:
    """Return the members, as the local copy of the board has them."""
    return members_in(board.peek(GONE), size)


def read_deaths(board: Board) -> list[Death]:
    """Return the workers that the others have outlived so far."""
    return [event for event in history_in(board.peek(GONE)) if isinstance(event, Death)]
