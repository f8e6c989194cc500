"""A separate server: a rank that holds a part of the parameters for all workers, and trains nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.core.contracts import Wire
from quorate.core.servers import ServerTerms
from quorate.core.vectors import bare_layout
from quorate.means.edge_coding import EdgeCoding
from quorate.records.rows import Served
from quorate.replica.replica import Replica
from quorate.servers.server_task import ServerTask
from quorate.servers.setting_out import Receiver
from quorate.servers.shard import cuts_of
from quorate.wire.failure import ended, note_server

_LOOK_SECONDS = 0.1
_ENDED_EVERY = 10
"""Number of looks after which it asks the board whether any worker is left."""


class OwnServer:
    """The separate server of one optimizer; `wire` is that of its workers. Only the layout of `replica` and the class
    of its optimizer are used. `check` raises where a worker called `distribute` with other arguments.

    Cost: memory for the model that the script has built, and for this server's part with its optimizer state.
    """

    def __init__(
        self,
        wire: Wire,
        replica: Replica,
        terms: ServerTerms,
        check: Callable[[Any], None],
        *,
        name: str,
        coding: EdgeCoding | None,
        tolerates_death: bool,
        record: Callable[[Served], None],
    ) -> None:
        """`record` is called with a row of the server's work from time to time."""
        self._wire = wire.channel("servers")
        cuts = cuts_of(bare_layout(replica.layout), len(terms.servers), replica.sparse_tables)
        self._record = record
        receiver = Receiver(replica, lambda part: cuts[part], check)
        self._task = ServerTask(self._wire, terms, range(wire.size), 0, receiver, name=name, coding=coding)
        self._task.book.set_out(wire.clock.now())
        if tolerates_death:
            self._task.hears_of_deaths()
        note_server(wire.board, wire.rank, is_outlived=terms.replication > 1)

    def serve(self) -> None:
        """Return when the training has ended, or no worker is left. Raises the error that ended the task otherwise.

        It polls, and so does not count as a rank that waits for others.
        """
        served, clock, looks = self._task.served, self._wire.clock, 0
        while not served.is_over:
            clock.sleep(_LOOK_SECONDS)
            looks += 1
            if self._task.book.is_due(clock.now()):
                self._record_work()
            if looks % _ENDED_EVERY == 0 and self._have_all_ended() and not served.is_over:
                self._task.close()
        self._record_work()
        served.wait()

    def _record_work(self) -> None:
        row = self._task.book.row(self._wire.clock.now())
        if row is not None:
            self._record(row)

    def _have_all_ended(self) -> bool:
        board, dead = self._wire.board, self._wire.dead
        return all(rank in dead or board.peek(ended(rank)) is not None for rank in range(self._wire.size))
