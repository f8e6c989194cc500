"""The workers among which each epoch of a static share is divided, where the training continues after a death."""

from __future__ import annotations

import json
from dataclasses import replace

from quorate.core.telling import tell
from quorate.data.assignment import KeptShare, Share, StaticShare
from quorate.data.context import DataContext
from quorate.data.position import Changes, members_in
from quorate.records.rows import Divided
from quorate.records.tape import Replaying
from quorate.wire.current import Place
from quorate.wire.survivors import DeathTolerance


class EpochMembers:
    """The members of each epoch of loader `loader`.

    The first worker that begins an epoch writes to the board which workers live, and all divide the epoch among these.
    A worker that joins within the epoch takes the part of the one that it replaces, or shares a part.

    Cost: a request to the board for each epoch, two for all workers but the first.
    """

    def __init__(self, place: Place, loader: int) -> None:
        self._place, self._loader = place, loader
        self._said: set[int] = set()
        self._newest = -1
        self.fixed = -1
        """The last epoch that is divided as at the start, since a run before may have begun it."""
        self.changes: Changes = {}

    def share_of(self, share: Share, epoch: int, *, trains: bool) -> Share:
        """Return this worker's share of `epoch`. With `trains`, report which deaths in the epoch before are new."""
        wire = self._place.wire
        is_split = type(share) in (StaticShare, KeptShare) and share.size == wire.size > 1
        if not is_split or self._place.context(DataContext).deals is not None:
            return share
        tape = self._place.context(Replaying).tape
        if tape is None and (epoch <= self.fixed or self._place.context(DeathTolerance).survivors is None):
            return share
        everyone = tuple(range(wire.size))
        members = self._agreed(epoch) if tape is None else tape.divided.get((self._loader, epoch), everyone)
        if trains:
            self.watch(self._newest, 0)
            self._newest = epoch
            if members_in(self.changes, epoch, wire.size) != members:
                self.changes[epoch] = members
            if members != everyone:
                self._place.context(DataContext).record(Divided(loader=self._loader, epoch=epoch, members=members))
        part = wire.rank if wire.rank in members else share.rank
        return replace(share, size=len(members), rank=members.index(part) if part in members else part % len(members))

    def _agreed(self, epoch: int) -> tuple[int, ...]:
        board, key = self._place.wire.board, f"loader/{self._loader}/members/{epoch}"
        alive = tuple(self._place.wire.alive)
        if board.swap(key, None, json.dumps(alive).encode()):
            return alive
        return tuple(json.loads(board.get(key) or b"[]")) or alive

    def watch(self, epoch: int, left: int) -> None:
        """Report which members of `epoch` have died since the last call; this worker has `left` batches to request.

        A dead worker is assumed to have been as far as this one, with a batch in hand.
        """
        wire = self._place.wire
        if epoch < 0 or epoch != self._newest or not wire.dead - self._said:
            return
        members = members_in(self.changes, epoch, wire.size)
        dead = sorted(rank for rank in wire.dead - self._said if rank in members)
        self._said |= wire.dead
        if dead and wire.rank == wire.alive[0]:
            ranks, lost = ", ".join(map(str, dead)), len(dead) * (left + 1)
            tell(
                f"quorate: rank {ranks} died in epoch {epoch}. About {lost} batches of it are left out, "
                f"unless a worker joins in its place. Epoch {epoch + 1} is divided among those that live then\n"
            )
