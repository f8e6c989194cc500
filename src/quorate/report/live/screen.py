"""A terminal with a few lines of ours below the output of a script, which stays as it is, byte for byte.

The cursor rests where the script has left it, and our lines are below. They are erased before the script's next
bytes and drawn again behind them, all in one write. So prompts, progress bars and half lines look as they do without
us. While the script's line is wider than the terminal, ours are erased. A script that moves the cursor between lines
(a full-screen program, nested progress bars) has the terminal for itself from then on.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO

from rich.cells import cell_len

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;:?<=>]*[ -/]*(?P<final>[@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[^\[\]])")
_HARMLESS = frozenset("mK")
"""Final letters of sequences that move no cursor: colours, and erasing within the line."""
_PARTS = re.compile(r"[\r\b\t]|[^\r\b\t]+")

DOWN = "\x1bD"
"""Moves the cursor down in its column, and scrolls at the bottom (IND)."""


class Screen:
    """One terminal. `written` and `show` may be called from several threads."""

    def __init__(self, terminal: BinaryIO, *, width: int | None = None) -> None:
        """With `width` None, the terminal is asked for it before every write."""
        self._terminal, self._width = terminal, width
        self._lock = threading.Lock()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        """The beginning of an escape sequence whose end is still to come."""
        self._column = self._extent = 0
        self._is_theirs = self._is_closed = False
        self._lines: Sequence[str] = ()
        self._drawn = 0

    @property
    def width(self) -> int:
        """The width in columns."""
        if self._width is not None:
            return self._width
        try:
            return os.get_terminal_size(self._terminal.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def written(self, piece: bytes) -> None:
        """Write bytes of the script."""
        with self._lock:
            before = self._erased()
            self._follow(piece)
            self._put(before + piece + self._redrawn())

    def show(self, lines: Sequence[str]) -> None:
        """Show these lines from now on, each narrower than the terminal; they may hold colours."""
        with self._lock:
            if self._is_closed:
                return
            if self._drawn == len(lines) and self._can_draw:
                self._lines = lines
                self._put(_below(lines).encode())
                return
            before = self._erased()
            self._lines = lines
            self._put(before + self._redrawn())

    def close(self) -> None:
        """Erase our lines for good."""
        with self._lock:
            self._put(self._erased())
            self._lines, self._is_closed = (), True

    @property
    def _can_draw(self) -> bool:
        is_between = not self._rest and not self._decoder.getstate()[0]
        return is_between and not self._is_theirs and self._extent < self.width

    def _erased(self) -> bytes:
        """Return the bytes that erase our lines.

        Without text at the right of the cursor, they erase from the cursor on: a line that was typed may have moved it.
        """
        if not self._drawn:
            return b""
        self._drawn = 0
        if self._column == self._extent:
            return b"\x1b[J"
        return b"\x1b7\x1b[1B\r\x1b[J\x1b8"

    def _redrawn(self) -> bytes:
        """Make room below by moving down, which scrolls, and up again, back to any place of the cursor."""
        if not self._lines or not self._can_draw:
            return b""
        self._drawn = len(self._lines)
        return f"{DOWN * self._drawn}\x1b[{self._drawn}A{_below(self._lines)}".encode()

    def _put(self, piece: bytes) -> None:
        if piece:
            self._terminal.write(piece)
            self._terminal.flush()

    def _follow(self, piece: bytes) -> None:
        text = self._rest + self._decoder.decode(piece)
        self._rest = ""
        begun = text.rfind("\x1b")
        if begun >= 0 and _ESCAPE.match(text, begun) is None:
            text, self._rest = text[:begun], text[begun:]
        for sequence in _ESCAPE.finditer(text):
            self._is_theirs |= sequence["final"] not in _HARMLESS and not sequence[0].startswith("\x1b]")
        _, newline, tail = _ESCAPE.sub("", text).rpartition("\n")
        if newline:
            self._column = self._extent = 0
        for part in _PARTS.findall(tail):
            if part == "\r":
                self._column = 0
            elif part == "\b":
                self._column = max(0, self._column - 1)
            elif part == "\t":
                self._column += 8 - self._column % 8
            else:
                self._column += cell_len(part)
            self._extent = max(self._extent, self._column)


def _below(lines: Sequence[str]) -> str:
    moved = "".join(f"\x1b[1B\r{line}\x1b[0m\x1b[K" for line in lines)
    return f"\x1b7{moved}\x1b8"


class _Above(io.RawIOBase):
    """A standard stream whose bytes go above our lines."""

    def __init__(self, screen: Screen, real: BinaryIO) -> None:
        self._screen, self._real = screen, real

    def write(self, piece: bytes) -> int:  # type: ignore[override]
        self._screen.written(bytes(piece))
        return len(piece)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._real.fileno()

    def isatty(self) -> bool:
        return True

    @property
    def name(self) -> str:
        return str(self._real.name)


@contextmanager
def on_terminal() -> Iterator[Screen | None]:
    """Keep output to `sys.stdout` and `sys.stderr`, if they are terminals, above the lines of a screen, inside the
    context.

    Yields the screen; None if stderr is no terminal, or one that cannot move its cursor.
    """
    if not (_is_terminal(sys.stderr) and os.linesep == "\n"):
        yield None
        return
    before = sys.stdout, sys.stderr
    screen = Screen(sys.stderr.buffer)
    try:
        if _is_terminal(sys.stdout):
            sys.stdout.flush()
            sys.stdout = _text(screen, sys.stdout.buffer)
        sys.stderr = _text(screen, sys.stderr.buffer)
        yield screen
    finally:
        with suppress(OSError, ValueError):  # the terminal was closed meanwhile
            screen.close()
        sys.stdout, sys.stderr = before


def _text(screen: Screen, real: BinaryIO) -> io.TextIOWrapper:
    return io.TextIOWrapper(_Above(screen, real), "utf-8", "backslashreplace", write_through=True)


def _is_terminal(stream: object) -> bool:
    try:
        return os.isatty(stream.fileno()) and hasattr(stream, "buffer")  # type: ignore[attr-defined]
    except (OSError, ValueError, AttributeError):
        return False
