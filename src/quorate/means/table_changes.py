"""Means of tables of which few rows change: of the gradients of one step, and of the changes between two means.

A worker notes the rows that its steps have touched since the newest mean, as they were then. With the mean of the other
parameters every worker sends the changes of these rows to every other. Let c be a row after the mean before, x_i that
of worker i, and w_i its weight: the row becomes c + sum w_i (x_i - c) / sum w_i. All add in order of rank, so that all
have the same bits.

A script may write into a table between steps, or load a checkpoint. Then nobody knows c_r, and the next mean is of full
tables. Steps on gradients that are equal on all workers, before the first local step, leave no changes.

Cost: per mean and worker, with P workers, P - 1 times the rows touched since the mean before. Memory holds one
more copy of these rows, and a byte for each row of the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.buckets.flat import sum_dtype
from quorate.buckets.ready import ReadyGradients
from quorate.buckets.rows import Rows, RowsOfWorker, as_gradient, read, rows_in, sum_of, written
from quorate.core.contracts import Wire, Work
from quorate.core.local_tensor import local
from quorate.replica.replica import Replica
from quorate.wire.survivors import Survivors


class TableMeans:
    """The exchange of the rows in the gradients of one optimizer's sparse tables, such as `Embedding(sparse=True)`.

    Beside each mean of vectors, every worker sends the indices and numbers of the rows in its gradients to every other,
    in one message. All add them in order of rank, so that all have the same bits. Workers without a gradient, as those
    that have paused, send a message without rows. Codecs and algorithms of sums change vectors only: rows are sent as
    they are. Cost: per step and worker, with P workers, P - 1 times the rows that it has touched. Neither time nor
    memory depends on the size of a table, unless a worker has a dense gradient of it.

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


_BY_ROWS = ("SGD", "Adagrad", "SparseAdam")
"""Classes of torch whose steps write only the rows of a sparse gradient."""


def can_exchange_changes(optimizer: Optimizer, plain: type[Optimizer]) -> bool:
    """Return whether gradients show which rows the steps of class `plain` write.

    Other classes may write every row. Sparse momentum of SGD writes rows that no new gradient has.
    """
    has_momentum = any(group.get("momentum") for group in optimizer.param_groups)
    return writes_rows_only(plain) and not has_momentum


def writes_rows_only(plain: type[Optimizer]) -> bool:
    """Return whether steps of class `plain` without momentum are known to write only the rows of a sparse gradient."""
    return plain.__name__ in _BY_ROWS and plain.__module__.startswith("torch.optim.")


class NotedRows:
    """The rows of one table that steps have touched since the newest mean, or the newest read from servers."""

    def __init__(self, table: Tensor) -> None:
        self._table = table
        self._is_noted = torch.zeros(len(self.table), dtype=torch.bool, device=table.device)
        self._indices, self._values = list[Tensor](), list[Tensor]()
        self._sign: tuple[int, int] | None = None
        self.note_writes()

    @property
    def table(self) -> Tensor:
        """The rows of the table that lie here."""
        return local(self._table)

    def note_writes(self) -> None:
        """Note that the table has been written by steps and means alone."""
        self._sign = self.table.data_ptr(), self.table._version

    @property
    def is_known(self) -> bool:
        """Whether nothing but steps and means has written into the table."""
        return self._sign == (self.table.data_ptr(), self.table._version)

    def note(self, rows: Rows) -> None:
        """Keep those of the rows that were not noted before, as they are."""
        indices = torch.arange(len(self.table), device=self.table.device) if rows.indices is None else rows.indices
        indices = indices[~self._is_noted[indices]]
        self._is_noted[indices] = True
        self._indices.append(indices)
        self._values.append(self.table.detach()[indices])

    @property
    def _before(self) -> tuple[Tensor, Tensor] | None:
        """The noted rows, by ascending index."""
        if not self._indices:
            return None
        indices, order = torch.cat(self._indices).sort()
        return indices, torch.cat(self._values)[order]

    def changes(self) -> Rows | None:
        """Return the changes of the noted rows since they were noted."""
        if self._before is None:
            return None
        indices, before = self._before
        return Rows(indices, self.table.detach()[indices] - before)

    def undo(self, *copies: Tensor) -> None:
        """Write the noted rows as they were into the table and its `copies`, and forget them."""
        if self._before is not None:
            indices, before = self._before
            for x in (self.table.detach(), *copies):
                x[indices] = before
        self.forget()

    def forget(self) -> None:
        """Forget the noted rows."""
        for indices in self._indices:
            self._is_noted[indices] = False
        self._indices, self._values = [], []

    def add(self, rows: Rows) -> None:
        """Add rows in the dtype of summation."""
        assert rows.indices is not None
        table = self.table.detach()
        now = table[rows.indices].to(rows.values.dtype)
        table[rows.indices] = (now + rows.values).to(table.dtype)


class TableChanges:
    """The tables of one optimizer between means of parameters; belongs to the training thread."""

    def __init__(
        self,
        replica: Replica,
        wire: Wire,
        survivors: Callable[[], Survivors | None],
        *,
        is_known: bool,
        steps_alone: Callable[[], bool],
    ) -> None:
        """`survivors` returns the workers that form sums, where these continue after a death. `is_known`: whether all
        workers have the same tables now. `steps_alone`: whether a step is of this worker's own gradient."""
        self._steps_alone = steps_alone
        self._is_by_rows = can_exchange_changes(replica.optimizer, replica.plain)
        self._tables, self._wire, self._survivors = list(replica.sparse_tables), wire.channel("changes"), survivors
        self._names = replica.all_names[len(replica.trained) :]
        self._noted, self._is_known = [NotedRows(table) for table in self._tables], is_known

    def begin(self) -> None:
        """Take the tables as they are now for equal on all workers."""
        self._is_known = self._is_by_rows
        self._note_writes()

    def _note_writes(self) -> None:
        for noted in self._noted:
            noted.note_writes()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Note the rows that the step inside touches: those of the gradients in `.grad`."""
        self._look()
        if self._steps_alone() and self._is_by_rows:
            for noted, rows in zip(self._noted, rows_in(self._tables, self._names), strict=True):
                if rows is not None:
                    noted.note(rows)
        yield
        self._note_writes()

    def _look(self) -> None:
        self._is_known = self._is_known and all(noted.is_known for noted in self._noted)

    def settle(self, weight: float) -> None:
        """Make the tables the weighted mean of all workers' tables; all call this after the same mean."""
        self._look()
        received = self._exchanged(weight) if self._is_known else self._received(math.nan, self._blank)
        if any(math.isnan(message.scale) for message in received):
            self._settle_in_full(weight)
        else:
            total = math.fsum(message.scale for message in received)
            for place, noted in enumerate(self._noted if total > 0 else ()):
                noted.undo()
                rows = sum_of(received, place, noted.table)
                if rows is not None:
                    rows.values.div_(total)
                    noted.add(rows)
        self.begin()

    @property
    def _blank(self) -> list[Rows | None]:
        return [None] * len(self._tables)

    def _exchanged(self, weight: float) -> list[RowsOfWorker]:
        return self._received(weight, [noted.changes() for noted in self._noted])

    def _received(self, scale: float, rows: Sequence[Rows | None]) -> list[RowsOfWorker]:
        message = written(rows, [x is not None for x in rows], scale, self._tables)
        survivors = self._survivors()
        work = self._wire.all_gather(message) if survivors is None else survivors.all_gather(message)
        return [read(message, self._tables) for message in work.wait()]

    def _settle_in_full(self, weight: float) -> None:
        received = self._received(weight, [Rows(None, noted.table.detach()) for noted in self._noted])
        total = math.fsum(message.scale for message in received)
        for place, noted in enumerate(self._noted):
            rows = sum_of(received, place, noted.table)
            assert rows is not None
            noted.forget()
            if total > 0:
                noted.table.detach().copy_(rows.values.div_(total))
