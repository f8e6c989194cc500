"""Parameters that all workers of one host have in common: moved to memory that all write to, and apart while all rest.

Nothing orders what workers do there. While all rest each stands apart, on a copy of its own that nobody writes to, so
that it evaluates and saves what all others do, however soon these go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from quorate.core.contracts import Common, Message, Wire, Work
from quorate.core.errors import ConfigurationError, WireTimeout, ranks_in_words
from quorate.means.open_admission import OpenAdmission
from quorate.replica.replica import Replica
from quorate.replica.seats import Seats

_TAG = "common parameters"
_LOOK_EVERY = 0.02
_SLICE = 0.25
"""Seconds after which a wait looks for who has died."""


@dataclass
class _Piece:
    """What was moved at once: the parameters that there were at the start, or such as came later."""

    seats: Seats
    common: Common
    known: list[int]
    """The parameters, as objects."""


class CommonParameters:
    """Those of one optimizer; every one of `members` (ranks) makes the same calls.

    Cost: the parameters once per host, in place of once per worker; while all rest, two copies of them per worker. To
    stand apart costs a word with the board, and one with each other worker.
    """

    def __init__(self, replica: Replica, wire: Wire, members: Callable[[], Collection[int]]) -> None:
        self._replica, self._wire, self._members = replica, wire.channel("common"), members
        self._pieces: list[_Piece] = []
        self._apart: list[tuple[Tensor, Tensor]] | None = None
        """By piece while this worker stands apart: its copy, and what that was at first."""
        self.rests = 0
        """How often all have stood apart: the same on every worker."""
        self._news: Work[tuple[int, Message]] | None = None
        self._looked_at = -math.inf
        self.admission = OpenAdmission(wire)
        """Who joins."""

    def take_in(self) -> None:
        """Move what is not there yet: all get the numbers of the first of them, which makes the memory.

        Raises `ConfigurationError` for parameters that cannot be moved, and where workers lay them out differently.
        """
        known = {one for piece in self._pieces for one in piece.known}
        new = [p for p in self._replica.every if id(p) not in known]
        if not new:
            return
        seats = Seats(new, self._others())
        wire, members = self._wire, sorted(set(self._members()) - self._wire.dead)
        if wire.rank == members[0]:
            common = wire.make_common(seats.nbytes)
            seats.copy_to(common.memory)
            for peer in members[1:]:
                wire.send(_told(common, seats), peer, _TAG)
        else:
            _, message = wire.receive(members[0], _TAG).wait()
            _check(message, seats, members[0], wire.rank)
            common = wire.find_common(message)
        seats.sit(common.memory)
        self._pieces.append(_Piece(seats, common, [id(p) for p in new]))

    def invitation(self) -> tuple[dict[str, Any], list[Tensor]]:
        """With it one that joins finds all of it, while this worker lives: plain JSON, and tensors."""
        place_of = {id(p): place for place, p in enumerate(self._replica.every)}
        headers, tensors = list[dict[str, Any]](), list[Tensor]()
        for piece in self._pieces:
            told = _told(piece.common, piece.seats)
            places = [place_of[known] for known in piece.known]
            headers.append({**told.header, "parameters": places, "tensors": len(told.tensors)})
            tensors += told.tensors
        return {"rests": self.rests, "pieces": headers}, tensors

    def comes(self, told: Mapping[str, Any], leave_if_over: Callable[[], None]) -> None:
        """This worker joins."""

    def withdraws(self) -> None:
        """It is not let in."""

    def enters(self) -> None:
        """It is one of those that train."""

    def follow(self, told: Mapping[str, Any], tensors: Sequence[Tensor], source: int) -> None:
        """This worker joins: from now on its parameters are those in common, as `source` tells where they are.

        Raises `ConfigurationError` as `take_in`.
        """
        left, self.rests = list(tensors), int(told["rests"])
        for header in told["pieces"]:
            some = [self._replica.every[place] for place in header["parameters"]]
            message = Message(tuple(left[: header["tensors"]]), header, shared=True)
            del left[: header["tensors"]]
            seats = Seats(some, self._others())
            _check(message, seats, source, self._wire.rank)
            common = self._wire.find_common(message)
            seats.sit(common.memory)
            self._pieces.append(_Piece(seats, common, [id(p) for p in some]))

    def _others(self) -> list[Tensor]:
        """What may look at the same numbers."""
        model = self._replica.model
        return [*model.parameters(), *model.buffers()]

    def look(self) -> None:
        """A step has ended, and nothing in it has waited: raise what went wrong elsewhere, as `Work.wait`.

        Cost: two words with the board, at most every 20 ms.
        """
        now = self._wire.clock.now()
        if now - self._looked_at < _LOOK_EVERY:
            return
        self._looked_at = now
        self._news = self._news or self._wire.receive(None, "nothing")
        with suppress(WireTimeout):
            self._news.wait(0.0)

    def has_any(self, parameters: Iterable[Tensor]) -> bool:
        """Whether one of them lies in this memory."""
        there = {piece.common.memory.untyped_storage().data_ptr() for piece in self._pieces}
        return any(p.untyped_storage().data_ptr() in there for p in parameters if p.layout == torch.strided)

    # -- while all rest

    def stand_apart(self) -> None:
        """All rest: from now on this worker has a copy of its own, until `come_back`. Returns when all have theirs."""
        self.rests += 1
        self._apart = [(x, x.clone()) for x in (piece.common.memory.clone() for piece in self._pieces)]
        for piece, (mine, _) in zip(self._pieces, self._apart, strict=True):
            piece.seats.sit(mine)
        board = self._wire.board
        board.delete(self._key(self.rests - 2, ""))
        board.set(self._key(self.rests, str(self._wire.rank)), b"apart")
        self._wait()

    def come_back(self) -> None:
        """This worker goes on, on what all have. What its script has written meanwhile it has written on all: the first
        to come back takes it along."""
        if self._apart is None:
            return
        apart, self._apart = self._apart, None
        key, mine = self._key(self.rests, "edited"), str(self._wire.rank).encode()
        for piece, (memory, shown) in zip(self._pieces, apart, strict=True):
            is_edited = not torch.equal(memory, shown)
            if is_edited and (self._wire.board.swap(key, None, mine) or self._wire.board.get(key) == mine):
                piece.seats.edits(memory, shown, into=piece.common.memory)
            piece.seats.sit(piece.common.memory)

    def ends(self) -> None:
        """This worker steps no more: nobody waits for it any more where all rest."""
        self._wire.board.set(self._ended(self._wire.rank), b"ended")

    def leave(self) -> None:
        """All have ended: the parameters are this worker's own again."""
        for piece in self._pieces:
            piece.seats.sit(piece.common.memory.clone())
        self._pieces.clear()

    def _wait(self) -> None:
        wire, until = self._wire, self._wire.clock.now() + self._wire.timeout
        while missing := [rank for rank in sorted(set(self._members()) - wire.dead) if not self._is_apart(rank)]:
            if wire.clock.now() > until:
                late = ranks_in_words(missing)
                raise WireTimeout(f"rank {wire.rank} waited {wire.timeout:g} s for {late} to rest", missing)
            with suppress(WireTimeout):
                wire.board.wait([self._key(self.rests, str(missing[0]))], _SLICE)

    def _is_apart(self, rank: int) -> bool:
        board = self._wire.board
        return board.get(self._key(self.rests, str(rank))) is not None or board.get(self._ended(rank)) is not None

    def _key(self, rest: int, what: str) -> str:
        return f"{self._wire.name}/rest {rest}/{what}"

    def _ended(self, rank: int) -> str:
        return f"{self._wire.name}/ended {rank}"


def check_shareable(replica: Replica, wire: Wire, label: str) -> None:
    """Raise `ConfigurationError` where parameters cannot lie in memory that all workers write to."""
    hosts = {wire.host_of(rank) for rank in range(wire.size)}
    if len(hosts) > 1:
        raise ConfigurationError(
            f"{label} updates parameters in memory that the processes of one host share, and the workers are on "
            f"{len(hosts)} hosts; start all of them on one host, or choose ad-psgd, which does not wait either"
        )
    names = {id(p): name for name, p in replica.model.named_parameters()}
    for p in replica.every:
        if p.device.type != "cpu" or p.layout != torch.strided:
            name = names.get(id(p), "a parameter")
            what = f"on {p.device}" if p.device.type != "cpu" else f"of the layout {p.layout}"
            raise ConfigurationError(
                f"{label} updates parameters in memory that the processes of one host share, which is memory of the "
                f"CPU for dense tensors, and {name} is {what}; leave the model on the CPU, or choose another strategy"
            )


def _told(common: Common, seats: Seats) -> Message:
    header = {**common.invitation.header, "laid out": seats.signature}
    return replace(common.invitation, header=header)


def _check(message: Message, seats: Seats, first: int, rank: int) -> None:
    if message.header["laid out"] != seats.signature:
        raise ConfigurationError(
            f"parameters lie in memory on rank {rank} in another order than on rank {first} (strides, or views of each "
            "other), so they cannot have it in common; every worker must build the same model"
        )
