"""What a run leaves behind, row by row: `rank-N.jsonl` in its folder, one JSON object a line, only ever appended to.

Everything that is said of a run afterwards (closing line, report, trace) is read from these rows and `run.json`. Rows
are told apart by "kind"; what each kind says is in `records.rows`. A worker that is killed leaves no end row, perhaps
half a line, which readers skip, and not its last half second.
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
    """Another place that is told of every row."""

    def row(self, values: Mapping[str, Any]) -> None:
        """Take one row, as it is written."""

    def close(self) -> None: ...


class LateNumber(Protocol):
    """A number that is still on its way from a device."""

    def is_there(self) -> bool:
        """Whether `value` would not wait."""

    def value(self) -> float:
        """The number; waits for it."""


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


CHAOS = "chaos.jsonl"
"""In the folder of a run whose launcher strikes its workers: whom, when and how."""
_MOST_LATE = 8
"""How many times as many steps as usual are held, at most, while their losses are on their way from a GPU."""
HELD_SECONDS = 0.5
"""How long a step may be held back before it is written."""


class Recorder:
    """Appends rows to one rank's file, which is made with the first.

    Steps are held back and written several at a time: `held` of them, or what `HELD_SECONDS` of the run's clock bring.
    Any other row is written at once, with what is held, unless `closes`: then the file is closed in between, and
    nothing is written before `held` rows are there (a virtual world has more workers than a process has files). `copy`
    is told of every row as it is written; `further` is asked for more rows whenever some are written. Where a row
    cannot be written (a full disk), what is there stays readable, `say` is given a sentence, and nothing more is
    written: no method raises for that. Not safe from several threads at once. Cost: some microseconds a step, and some
    20 µs when it is written.
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
        """Write a `step` row, some time; with a `loss` that is on its way from a device, when it is there.

        Rows behind it wait with it, unless they have to be written at once: those wait for it.
        """
        self._rows.append(row if loss is None else _LateStep(row, loss))
        if self._since is None:
            self._since = row.end
        if len(self._rows) >= self._held or (not self._closes and row.end - self._since >= HELD_SECONDS):
            self._flush(self._are_there() if len(self._rows) < _MOST_LATE * self._held else len(self._rows))

    def hold(self, row: Row) -> None:
        """Write a row with what comes after it."""
        self._rows.append(row)

    def write(self, row: Row) -> None:
        """Write a row of another kind; its values are plain JSON ones."""
        self._rows.append(row)
        if not self._closes or len(self._rows) >= self._held:
            self.flush()

    def flush(self) -> None:
        """Write what is held; waits for numbers that are on their way."""
        self._flush(len(self._rows))

    def _are_there(self) -> int:
        """How many rows, from the first one on, wait for no number from a device."""
        late = (place for place, row in enumerate(self._rows) if isinstance(row, _LateStep) and not row.loss.is_there())
        return next(late, len(self._rows))

    def _flush(self, count: int) -> None:
        if not count:
            return
        rest = self._rows[count:]
        held = [*self._rows[:count], *self._further()]
        self._rows, self._since = rest, next((row.end for row in rest if isinstance(row, Step | _LateStep)), None)
        values = [row.as_json() for row in held]
        text = "".join(json.dumps(one, separators=(",", ":"), allow_nan=True) + "\n" for one in values).encode()
        try:
            self._append(text)
            if self._copy is not None:
                for one in values:
                    self._copy.row(one)
        except OSError as error:
            self._give_up(error)

    def _append(self, text: bytes) -> None:
        if self._is_lost:
            return
        if self._file is None:
            self._file = FileIO(self.path, "a")
        begin, written = self._file.seek(0, SEEK_END), 0
        try:
            while written < len(text):  # a disk that gets full takes a part first
                written += self._file.write(text[written:])
        except OSError:
            with suppress(OSError):
                self._file.truncate(begin)
            raise
        if self._closes:
            self._file.close()
            self._file = None

    def _give_up(self, error: OSError) -> None:
        """A training is worth more than its records: it goes on without them, once that was said."""
        self._is_lost, self._copy = True, None
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
        self._say(f"the records in {self.path} end here ({error.strerror or error}); the training goes on without them")

    def close(self) -> None:
        """Write what is held, and close the file."""
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
    """Where the rows of `rank` are."""
    return folder / f"rank-{rank}.jsonl"


def ranks_in(folder: Path) -> list[int]:
    """The ranks that have left rows in `folder`."""
    names = (path.stem.removeprefix("rank-") for path in folder.glob("rank-*.jsonl") if path.is_file())
    return sorted(int(name) for name in names if name.isdecimal() and len(name) < 10)


def rows(path: Path, kinds: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The rows of one file in order; a line that is cut off or damaged is skipped. Nothing where there is no file.

    With `kinds`, those of other kinds are passed over, most of them unread.
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
    """Those of the lines that are whole rows."""
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and "kind" in row:
            yield row
