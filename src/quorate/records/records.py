"""The records of a run: the file `rank-N.jsonl` of each rank in its folder, to which rows are appended as JSON lines.

Closing line, report and trace are all computed from these rows and `run.json`. Each row has a "kind"; `records.rows`
defines the kinds. A worker that is killed writes no end row, loses its last half second, and may leave an unfinished
line, which readers skip.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import SEEK_END, FileIO
from pathlib import Path
from typing import Any, Protocol

from quorate.records.rows import DIGITS, Row, Step


class Copy(Protocol):
    """Another destination of every row."""

    def row(self, values: Mapping[str, Any]) -> None:
        """Take one row, in the form in which it is written."""

    def close(self) -> None: ...


class LateNumber(Protocol):
    """A number that is still on its way from a device."""

    def is_there(self) -> bool:
        """Return whether the number has arrived, so that `value` does not wait."""

    def value(self) -> float:
        """Wait for the number, and return it."""


@dataclass(frozen=True)
class _LateStep:
    """A step whose loss is still on its way."""

    row: Step
    loss: LateNumber

    @property
    def end(self) -> float:
        return self.row.end

    def as_json(self) -> dict[str, Any]:
        return {**self.row.as_json(), "loss": round(self.loss.value(), DIGITS)}


_as_text = json.JSONEncoder(separators=(",", ":")).encode
CHAOS = "chaos.jsonl"
"""The file of faults that the launcher has injected, in the folder of a run: which ranks, when and how."""
_MOST_LATE = 8
"""Greatest multiple of the usual number of held steps while losses are on their way from a GPU."""
HELD_SECONDS = 0.5
"""Longest time for which a step is held back before it is written."""


class Recorder:
    """Appends rows to the file of one rank, which the first row creates.

    Steps are held back and written several at a time: `held` of them, or those of `HELD_SECONDS` of the run's clock.
    Any other row is written at once, with the rows that are held. With `closes`, the file is closed between writes, and
    every row waits until there are `held` rows: a virtual world has more workers than a process may have open files.
    `copy` gets every row when it is written, and `further` is asked for more rows then. No method raises if a row
    cannot be written, as on a full disk: earlier rows stay readable, `say` gets a sentence, and nothing more is
    written. Not thread-safe. Cost: some microseconds a step, and some 20 µs when it is written.
    """

    def __init__(
        self,
        path: Path,
        *,
        held: int = 32,
        closes: bool = False,
        copy: Copy | None = None,
        say: Callable[[str], None] = lambda sentence: None,
        further: Callable[[], Sequence[Row]] = tuple,
    ) -> None:
        self.path, self._held, self._closes, self._copy, self._say = path, held, closes, copy, say
        self._further = further
        self._is_lost = False
        self._rows: list[Step | _LateStep | Row] = []
        self._since: float | None = None
        self._file: FileIO | None = None

    def step(self, row: Step, loss: LateNumber | None = None) -> None:
        """Hold a `step` row, to be written later; with a `loss` that is on its way from a device, when it has arrived.

        Later rows wait with it. A row that has to be written at once blocks until the loss has arrived.
        """
        self._rows.append(row if loss is None else _LateStep(row, loss))
        if self._since is None:
            self._since = row.end
        if len(self._rows) >= self._held or (not self._closes and row.end - self._since >= HELD_SECONDS):
            self._flush(self._count_ready() if len(self._rows) < _MOST_LATE * self._held else len(self._rows))

    def hold(self, row: Row) -> None:
        """Hold a row, to be written together with the next rows."""
        self._rows.append(row)

    def write(self, row: Row) -> None:
        """Write a row of another kind than `step`; its values are plain JSON values."""
        self._rows.append(row)
        if not self._closes or len(self._rows) >= self._held:
            self.flush()

    def flush(self) -> None:
        """Write all rows that are held; waits for numbers that are on their way."""
        self._flush(len(self._rows))

    def _count_ready(self) -> int:
        """Return the number of rows before the first that waits for a number from a device."""
        late = (place for place, row in enumerate(self._rows) if isinstance(row, _LateStep) and not row.loss.is_there())
        return next(late, len(self._rows))

    def _flush(self, count: int) -> None:
        if not count:
            return
        remaining = self._rows[count:]
        written = [*self._rows[:count], *self._further()]
        self._rows = remaining
        self._since = next((row.end for row in remaining if isinstance(row, Step | _LateStep)), None)
        values = [row.as_json() for row in written]
        text = ("\n".join(map(_as_text, values)) + "\n").encode()
        try:
            self._append(text)
            if self._copy is not None:
                for row in values:
                    self._copy.row(row)
        except OSError as error:
            self._give_up(error)

    def _append(self, text: bytes) -> None:
        if self._is_lost:
            return
        if self._file is None:
            self._file = FileIO(self.path, "a")
        begin, written = self._file.seek(0, SEEK_END), 0
        try:
            while written < len(text):  # a disk that becomes full takes a part first
                written += self._file.write(text[written:])
        except OSError:
            with suppress(OSError):
                self._file.truncate(begin)
            raise
        if self._closes:
            self._file.close()
            self._file = None

    def _give_up(self, error: OSError) -> None:
        """Stop recording after an error, and say so; the training continues."""
        self._is_lost, self._copy = True, None
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
        self._say(f"the records in {self.path} end here ({error.strerror or error}); the training goes on without them")

    def close(self) -> None:
        """Write all rows that are held, and close the file."""
        self.flush()
        try:
            if self._copy is not None:
                self._copy.close()
            if self._file is not None:
                self._file.close()
        except OSError as error:
            self._give_up(error)
        self._copy = self._file = None


def records_of(folder: Path, rank: int) -> Path:
    """Return the path of the file of `rank`."""
    return folder / f"rank-{rank}.jsonl"


def ranks_in(folder: Path) -> list[int]:
    """Return the ranks that have a file in `folder`, sorted."""
    names = (path.stem.removeprefix("rank-") for path in folder.glob("rank-*.jsonl") if path.is_file())
    return sorted(int(name) for name in names if name.isdecimal() and len(name) < 10)


def rows(path: Path, kinds: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file in order, without unfinished and damaged lines. A missing file has no rows.

    With `kinds`, rows of other kinds are skipped, most of them without being parsed.
    """
    try:
        file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115 - closed below
    except (FileNotFoundError, IsADirectoryError):
        return
    with file:
        if kinds:
            lines = (line for line in file if any(kind in line for kind in kinds))
            yield from (row for row in rows_in(lines) if row["kind"] in kinds)
        else:
            yield from rows_in(file)


def rows_in(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """Yield the lines that are complete rows, parsed."""
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and "kind" in row:
            yield row


class LiveRows:
    """Reads the rows of a file that were added since the last look; a look costs no more than its new rows."""

    def __init__(self, path: Path) -> None:
        """The file need not exist yet."""
        self._path = path
        self._bytes_read, self._unfinished_line = 0, b""
        self._is_inside = False
        """Whether reading goes on in the middle of a line."""
        self.has_more = False
        """Whether the file had more bytes than the newest look has read."""

    def look(self, most_bytes: int = -1) -> list[dict[str, Any]]:
        """Return the new rows in order. A damaged line is skipped; an unfinished line is read when its end is there.

        At most `most_bytes` are read, unless it is below 0; the next look reads the others.
        """
        try:
            with open(self._path, "rb") as file:
                file.seek(self._bytes_read)
                new = file.read(most_bytes)
        except OSError:
            new = b""
        self.has_more = len(new) == most_bytes
        self._bytes_read += len(new)
        if self._is_inside:
            _, line_end, new = new.partition(b"\n")
            self._is_inside = not line_end
        *lines, self._unfinished_line = (self._unfinished_line + new).split(b"\n")
        return list(rows_in(lines))

    def skip(self, but_for_bytes: int) -> None:
        """Skip the new bytes except the last `but_for_bytes`, and the row in whose middle these begin."""
        try:
            begin = self._path.stat().st_size - but_for_bytes - 1
        except OSError:
            return
        if begin > self._bytes_read:
            self._bytes_read, self._unfinished_line, self._is_inside = begin, b"", True
