"""Tables of which a step touches few rows, on servers: the rows that workers push, and the rows that they read.

A push has the rows in the gradients of a worker. A read has the rows that steps have changed since the last read of the
same worker, or full tables where the worker begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from quorate.buckets.rows import Rows, RowsOfWorker, as_gradient, read, rows_in, sum_of, written
from quorate.core.errors import ConfigurationError
from quorate.means.table_changes import NotedRows
from quorate.replica.replica import Replica


def full_message(tables: Sequence[Tensor]) -> Tensor:
    """Return the message with all rows of these tables."""
    return _message([Rows(None, table.detach()) for table in tables], tables)


def write_rows(message: Tensor, tables: Sequence[Tensor]) -> None:
    """Write the rows in a message into these tables."""
    for table, rows in zip(tables, read(message, tables).tables, strict=True):
        if rows is not None:
            table.detach()[slice(None) if rows.indices is None else rows.indices] = rows.values


def _message(rows: Sequence[Rows | None], tables: Sequence[Tensor], scale: float = 1.0) -> Tensor:
    return written(rows, [x is not None for x in rows], scale, tables).cpu()


class TablesOfWorker:
    """The sparse tables of one worker whose parameters lie on servers; belongs to the training thread.

    Where the worker makes steps of its own between reads, the rows that these touch are restored before the next read.

    Cost: a byte for each row of a table, and a copy of the rows of gradients that were not pushed yet.
    """

    def __init__(self, replica: Replica) -> None:
        self._tables, self._names = list(replica.sparse_tables), replica.all_names[len(replica.trained) :]
        self._noted = [NotedRows(table) for table in self._tables]
        self._taken = list[RowsOfWorker]()
        """The rows of each gradient since the newest push."""

    def set_out(self) -> None:
        """Take the tables as they are now for those on the servers."""
        self._taken = []
        for noted in self._noted:
            noted.forget()
            noted.note_writes()

    def look(self) -> None:
        """Raise `ConfigurationError` where the script has written into a table."""
        for noted, name in zip(self._noted, self._names, strict=True):
            if not noted.is_known:
                raise ConfigurationError(
                    f"the script, or max_norm of the layer, has written into {name} since the newest step. Servers "
                    "exchange only rows of its sparse gradient. Write before quorate.distribute or inside "
                    "world.evaluate(), or build the layer with sparse=False"
                )

    def take(self, scale: float) -> None:
        """Take in `scale` times the rows in `.grad`. Raises as `rows_of`."""
        rows = rows_in(self._tables, self._names)
        copies = tuple(None if x is None else Rows(x.indices, x.values.clone()) for x in rows)
        self._taken.append(RowsOfWorker(scale, copies, tuple(x is not None for x in rows)))

    def pushed(self, places: Sequence[int], factor: float) -> list[Tensor]:
        """Return the message with `factor` times the rows of the tables at these places; none if there is no place."""
        if not places:
            return []
        tables = [self._tables[place] for place in places]
        if len(self._taken) == 1:
            (taken,) = self._taken
            return [_message([taken.tables[place] for place in places], tables, taken.scale * factor)]
        rows = [sum_of(self._taken, place, self._tables[place]) for place in places]
        narrowed = [
            None if x is None else Rows(x.indices, x.values.to(table.dtype))
            for x, table in zip(rows, tables, strict=True)
        ]
        return [_message(narrowed, tables, factor)]

    def forget(self) -> None:
        """Forget the rows that were pushed."""
        self._taken = []

    def write(self, places: Sequence[int], message: Tensor) -> None:
        """Continue with the tables at these places as a server has sent their rows."""
        for place in places:
            self._noted[place].undo()
        write_rows(message, [self._tables[place] for place in places])
        for place in places:
            self._noted[place].note_writes()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Note the rows that this worker's own step inside touches."""
        for noted, rows in zip(self._noted, rows_in(self._tables, self._names), strict=True):
            if rows is not None:
                noted.note(rows)
        yield
        for noted in self._noted:
            noted.note_writes()


@dataclass
class _Changes:
    """The changes of one table since the start of the era."""

    entries: deque[tuple[int, Tensor]] = field(default_factory=deque)
    """Pairs of a step and the indices of the rows that it has changed, from the oldest to the newest."""
    count: int = 0
    """The number of these indices."""
    begin: int = 0
    """The step after which the entries are complete."""

    def add(self, step: int, indices: Tensor | None, limit: int) -> None:
        """Note the rows that a step has changed (None: all). At most `limit` indices are kept."""
        if indices is None:
            self.entries.clear()
            self.count, self.begin = 0, step
            return
        self.entries.append((step, indices))
        self.count += len(indices)
        while self.count > limit:
            self.begin, dropped = self.entries.popleft()
            self.count -= len(dropped)

    def rows_since(self, step: int, table: Tensor) -> Rows | None:
        """Return the rows of `table` that were changed after a step."""
        if step < self.begin:
            return Rows(None, table.detach())
        indices = [changed for number, changed in self.entries if number > step]
        if not indices:
            return None
        together = torch.cat(indices).unique()
        return Rows(together, table.detach()[together])


class TablesOfPart:
    """The sparse tables of one part on a server, and the rows that each worker has not read yet.

    Cost: 8 bytes for each changed row, and at most for each row of a table; a read takes time by the changed rows.
    """

    def __init__(self, tables: Sequence[Tensor], *, writes_rows_only: bool) -> None:
        """`writes_rows_only`: whether steps change no other rows than those of the gradient."""
        self._tables, self._writes_rows_only = tables, writes_rows_only
        self._changes = [_Changes() for _ in tables]
        self._step = 0
        self._read = dict[int, int]()
        """By worker, the number of steps before its last read."""

    def gradients(self, pushed: Sequence[tuple[float, RowsOfWorker]]) -> list[Tensor | None]:
        """Return the gradients of the next step: the sums of the rows that were pushed, each times its factor."""
        messages = [replace(rows, scale=rows.scale * factor) for factor, rows in pushed]
        self._step += 1
        gradients = list[Tensor | None]()
        for place, (table, changes) in enumerate(zip(self._tables, self._changes, strict=True)):
            rows = sum_of(messages, place, table)
            gradients.append(None if rows is None else as_gradient(rows, table))
            if rows is not None:
                changes.add(self._step, rows.indices if self._writes_rows_only else None, len(table))
        return gradients

    def read(self, readers: Sequence[int], *, is_whole: bool, is_sent: bool) -> dict[int, Tensor]:
        """Return the message for each reader, with full tables if `is_whole`. None is sent unless `is_sent`."""
        steps = {reader: -1 if is_whole else self._read.get(reader, 0) for reader in readers}
        self._read |= dict.fromkeys(readers, self._step)
        messages = {step: self._message_since(step) for step in set(steps.values())} if is_sent else {}
        return {reader: messages[step] for reader, step in steps.items()} if is_sent else {}

    def _message_since(self, step: int) -> Tensor:
        pairs = zip(self._changes, self._tables, strict=True)
        return _message([changes.rows_since(step, table) for changes, table in pairs], self._tables)
