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
from quorate.means.table_changes import NotedRows, writes_rows_only
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
    Numbers that the script has written into a table are found by comparison with a copy, where torch's version of the
    tensor has changed, and before pauses.

    Cost: a copy of each table, a byte for each of its rows, and a copy of the rows that were not pushed yet.
    """

    def __init__(self, replica: Replica) -> None:
        self._tables, self._names = list(replica.sparse_tables), replica.all_names[len(replica.trained) :]
        self._writes_rows_only = writes_rows_only(replica.plain)
        self._noted = [NotedRows(table) for table in self._tables]
        self._shown = [table.detach().clone() for table in self._tables]
        """The tables as reads and steps have left them."""
        self._taken = list[RowsOfWorker]()
        """The rows of each gradient since the newest push."""
        self._edits: list[list[Rows]] = [[] for _ in self._tables]
        """For each table the rows that the script has written since the newest push; NaN where it has not."""

    def set_out(self) -> None:
        """Take the tables as they are now for those on the servers."""
        self._taken, self._edits = [], [[] for _ in self._tables]
        for noted, shown in zip(self._noted, self._shown, strict=True):
            noted.forget()
            shown.copy_(noted.table.detach())
            noted.note_writes()

    def take_edits(self, *, always: bool = False) -> bool:
        """Take in what the script has written into the tables, and return whether edits wait for a push.

        `always`: also what was written into `.data`, which torch does not show.
        """
        for noted, shown, edits in zip(self._noted, self._shown, self._edits, strict=True):
            if noted.is_known and not always:
                continue
            now = noted.table.detach()
            indices = (now != shown).flatten(1).any(1).nonzero()[:, 0]
            if len(indices):
                values, before = now[indices], shown[indices]
                edits.append(Rows(indices, values.masked_fill(values == before, torch.nan)))
                shown[indices] = values
            noted.note_writes()
        return any(self._edits)

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

    def edited(self, places: Sequence[int]) -> list[Tensor]:
        """Return the message with the edits of the tables at these places; none if there is no place, or no edit."""
        if not (places and any(self._edits)):
            return []
        return [_message([_joined(self._edits[place]) for place in places], [self._tables[place] for place in places])]

    def forget(self, *, gradients: bool) -> None:
        """Forget the edits that were pushed, and the `gradients` if these were."""
        self._edits = [[] for _ in self._tables]
        if gradients:
            self._taken = []

    def write(self, places: Sequence[int], message: Tensor) -> None:
        """Continue with the tables at these places as a server has sent their rows."""
        tables, shown = [self._tables[place] for place in places], [self._shown[place] for place in places]
        for place in places:
            self._noted[place].undo(self._shown[place])
        write_rows(message, tables)
        write_rows(message, shown)
        for place in places:
            self._noted[place].note_writes()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Note the rows that this worker's own step inside touches."""
        self.take_edits()
        touched = rows_in(self._tables, self._names)
        if not self._writes_rows_only:
            touched = [None if rows is None else Rows(None, rows.values) for rows in touched]
        for noted, rows in zip(self._noted, touched, strict=True):
            if rows is not None:
                noted.note(rows)
        yield
        for noted, shown, rows in zip(self._noted, self._shown, touched, strict=True):
            if rows is not None:
                places = slice(None) if rows.indices is None else rows.indices
                shown[places] = noted.table.detach()[places]
            noted.note_writes()


def _joined(edits: Sequence[Rows]) -> Rows | None:
    """Return several edits of one table as one; later numbers replace earlier ones."""
    if len(edits) < 2:
        return edits[0] if edits else None
    every = [edit.indices for edit in edits if edit.indices is not None]
    indices, inverse = torch.cat(every).unique(return_inverse=True)
    values = edits[0].values.new_full((len(indices), *edits[0].values.shape[1:]), torch.nan)
    for edit, places in zip(edits, inverse.split([len(x) for x in every]), strict=True):
        values[places] = torch.where(edit.values.isnan(), values[places], edit.values)
    return Rows(indices, values)


@dataclass
class _Changes:
    """The changes of one table since the start of the era."""

    entries: deque[tuple[int, Tensor]] = field(default_factory=deque)
    """Pairs of the number of a change and the indices of its rows, from the oldest to the newest."""
    count: int = 0
    """The number of these indices."""
    begin: int = 0
    """The change after which the entries are complete."""

    def add(self, number: int, indices: Tensor | None, limit: int) -> None:
        """Note the rows of a change (None: all). At most `limit` indices are kept."""
        if indices is None:
            self.entries.clear()
            self.count, self.begin = 0, number
            return
        self.entries.append((number, indices))
        self.count += len(indices)
        while self.count > limit:
            self.begin, dropped = self.entries.popleft()
            self.count -= len(dropped)

    def rows_since(self, change: int, table: Tensor) -> Rows | None:
        """Return the rows of `table` after a change, if later ones have written them."""
        if change < self.begin:
            return Rows(None, table.detach())
        indices = [rows for number, rows in self.entries if number > change]
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
        self._change = 0
        """The number of steps and edits."""
        self._read = dict[int, int]()
        """By worker, the number of changes before its last read."""

    def write(self, edit: RowsOfWorker) -> None:
        """Set numbers to those of an edit, where they are not NaN."""
        self._change += 1
        for table, changes, rows in zip(self._tables, self._changes, edit.tables, strict=True):
            if rows is not None and rows.indices is not None:
                now = table.detach()
                now[rows.indices] = torch.where(rows.values.isnan(), now[rows.indices], rows.values)
                changes.add(self._change, rows.indices, len(table))

    def gradients(self, pushed: Sequence[tuple[float, RowsOfWorker]]) -> list[Tensor | None]:
        """Return the gradients of the next step: the sums of the rows that were pushed, each times its factor."""
        messages = [replace(rows, scale=rows.scale * factor) for factor, rows in pushed]
        self._change += 1
        gradients = list[Tensor | None]()
        for place, (table, changes) in enumerate(zip(self._tables, self._changes, strict=True)):
            rows = sum_of(messages, place, table)
            gradients.append(None if rows is None else as_gradient(rows, table))
            if rows is not None:
                changes.add(self._change, rows.indices if self._writes_rows_only else None, len(table))
        return gradients

    def read(self, readers: Sequence[int], *, is_whole: bool, is_sent: bool) -> dict[int, Tensor]:
        """Return the message for each reader, with full tables if `is_whole`. None is sent unless `is_sent`."""
        last = {reader: -1 if is_whole else self._read.get(reader, 0) for reader in readers}
        self._read |= dict.fromkeys(readers, self._change)
        if not is_sent:
            return {}
        messages = {change: self._message_since(change) for change in set(last.values())}
        return {reader: messages[change] for reader, change in last.items()}

    def _message_since(self, change: int) -> Tensor:
        pairs = zip(self._changes, self._tables, strict=True)
        return _message([changes.rows_since(change, table) for changes, table in pairs], self._tables)
