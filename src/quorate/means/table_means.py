"""Means of the gradients of tables of which a step touches few rows: `Embedding(sparse=True)` and the like.

Beside each mean of vectors, every worker sends the indices and numbers of the rows in its gradients to every other, in
one message. All add them in order of rank, so that all have the same bits. Workers without a gradient, as those that
have paused, send a message without rows. Codecs and algorithms of sums change vectors only: rows are sent as they are.

Cost: per step and worker, with P workers, P - 1 times the rows that it has touched. Neither time nor memory depends on
the size of a table, unless a worker has a dense gradient of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from quorate.buckets.flat import sum_dtype
from quorate.buckets.ready import ReadyGradients
from quorate.buckets.rows import Rows, as_gradient, read, rows_in, sum_of, written
from quorate.core.contracts import Wire, Work
from quorate.replica.replica import Replica


class TableMeans:
    """The exchange of the rows of one optimizer's sparse tables.

    `look` checks and measures the numbers that this worker contributes. All workers start equally many exchanges.
    """

    def __init__(self, replica: Replica, wire: Wire, ready: ReadyGradients, look: Callable[..., None]) -> None:
        self._tables, self._names = list(replica.sparse_tables), replica.all_names[-len(replica.sparse_tables) :]
        self._wire, self._ready, self._look = wire.channel("rows"), ready, look
        self._sums = list[Rows | None]()
        """For each table the newest sum, and after `take` in place its mean; None: no worker has touched it."""

    def message(self, scale: float) -> Tensor:
        """Return the message of this worker with `scale` times the gradients in `.grad`.

        Raises `ConfigurationError` for gradients with other sparse numbers than rows.
        """
        tables = rows_in(self._tables, self._names)
        for rows in tables:
            if rows is not None:
                self._look((rows.values.to(sum_dtype(rows.values.dtype)) * scale).contiguous())
        return written(tables, self._ready.touched_tables, scale, self._tables)

    def empty_message(self) -> Tensor:
        """Return the message of a worker that contributes no gradient."""
        count = len(self._tables)
        return written([None] * count, [False] * count, 0.0, self._tables)

    def exchange(self, message: Tensor) -> Work[list[Tensor]]:
        """Launch the exchange of the messages of all workers."""
        return self._wire.all_gather(message)

    def take(self, messages: Sequence[Tensor]) -> list[Tensor]:
        """Add the rows of all workers, and return the sums of touched rows, which the caller makes the means."""
        received = [read(message, self._tables) for message in messages]
        self._sums = [
            sum_of(received, place, table) if any(worker.touched[place] for worker in received) else None
            for place, table in enumerate(self._tables)
        ]
        return [rows.values for rows in self._sums if rows is not None]

    def write(self) -> None:
        """Make the newest means the `.grad` of every table that any worker has touched."""
        for table, rows in zip(self._tables, self._sums, strict=False):
            if rows is not None:
                table.grad = as_gradient(rows, table)
        self._sums = []


def means_of_tables(
    replica: Replica, wire: Wire, ready: ReadyGradients, look: Callable[..., None]
) -> TableMeans | None:
    """Return the means of tables beside every mean of vectors; None where no gradients of tables are exchanged."""
    has_rows = replica.sparse_tables and replica.exchanges_rows
    return TableMeans(replica, wire, ready, look) if has_rows else None
