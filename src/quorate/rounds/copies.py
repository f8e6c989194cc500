"""The messages of copies of replicas: for members that miss more than the log has, and for newcomers.

A newcomer asks for a copy of a replica, which comes from a worker that steps. The copy is of one *era*, the rounds
between two pauses, since collective calls of workers are counted from there. Then it asks to be let in. The next round
names it among those that have joined, on every worker, if it has all rounds before that one and its copy is of the same
era. Otherwise it copies again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from quorate.core.fields import Fields, Header
from quorate.rounds.log import Jump


@dataclass(frozen=True)
class Copy:
    """The message of a copy of a replica to another worker's member."""

    jump: Jump
    leads: int
    logged: int
    replica: dict[str, Any]  # open: made and read by the replica; see `entering.Replica.capture`
    is_whole: bool  # whether it is for a newcomer, with the optimizer, the strategy's state and the place in the data
    tensors: Sequence[Tensor] = ()
    place: int = 0  # in a replica in pieces, its number among the copies that came: added on arrival

    def header(self) -> dict[str, Any]:
        about = {"kind": "copy", "term": self.jump.term, **self.jump.state.header(), "leads": self.leads}
        return {**about, "logged": self.logged, "replica": self.replica, "is_whole": self.is_whole}

    @classmethod
    def read(cls, header: Header, tensors: Sequence[Tensor] = ()) -> Copy:
        leads, logged, place = header["leads"], header["logged"], header.get("place", 0)
        return cls(Jump.read(header), leads, logged, header["replica"], header["is_whole"], tensors, place)


@dataclass(frozen=True, slots=True)
class CopyFor(Fields):
    """The message of the leader to a worker that has to copy its replica to worker `rank`."""

    kind: str = field(init=False, default="copy for")
    rank: int
    is_new: bool
