"""The progress of a run while it runs: a few lines at the bottom of a terminal, or a line a minute elsewhere."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from quorate.core.telling import tell
from quorate.report.live.run import LiveRun
from quorate.report.live.view import LiveView, view_of

SHOWN_EVERY, SAID_EVERY = 1.0, 60.0
"""Seconds between two states on a terminal, and between two lines elsewhere."""
MOST_BYTES = 1 << 18
"""The most bytes read in one look, of all ranks together: some 10 ms."""
_MOVES = re.compile(rb"\x1b(?:\[[0-9;:?<=>]*[ -/]*(?![mK])[@-~]|[^\[\]])")
"""Sequences that move the cursor, unlike colours, titles and erasing within the line."""
_LONGEST = 32
"""Bytes of a sequence that may come in two pieces."""


@contextmanager
def progress_shown(folder: Path, *, can_draw: bool = True) -> Iterator[Callable[[], None]]:
    """Show the progress of the run in `folder` on stderr, by a thread that reads its records, inside the context.

    Yields a function that starts the thread, so that processes can be forked before. On a terminal it shows step,
    rates, loss, logged values, time left if known, and slow ranks, below the output of the script. Elsewhere, and
    without `can_draw` (`TERM=dumb`), it prints the same in one line a minute. Cost: at most `MOST_BYTES` are read in
    each look; rows beyond them are skipped.
    """
    run = LiveRun(folder, most_bytes=MOST_BYTES)
    with ExitStack() as stack:
        screen = stack.enter_context(on_terminal()) if can_draw else None

        def look() -> None:
            run.look()
            view = view_of(run)
            if screen is None:
                tell(f"quorate: {', '.join([*view.progress, *view.rounds, *([view.slow] if view.slow else [])])}\n")
            else:
                screen.show(lines_of(view, screen.width))

        yield stack.enter_context(repeated(look, SAID_EVERY if screen is None else SHOWN_EVERY))


@contextmanager
def repeated(look: Callable[[], None], seconds: float) -> Iterator[Callable[[], None]]:
    """Yield a function that starts a thread, which calls `look` every `seconds`; `OSError` and `ValueError` end it."""
    over = threading.Event()

    def watch() -> None:
        with suppress(OSError, ValueError):  # a terminal that was closed: the run is worth more than its display
            while not over.wait(seconds):
                look()

    thread = threading.Thread(target=watch, name="quorate progress", daemon=True)
    try:
        yield thread.start
    finally:
        over.set()
        if thread.ident is not None:
            thread.join(2.0)


def lines_of(view: LiveView, width: int) -> Group:
    """Return the lines of a terminal; those that are wider than it go on in the next line, between two figures."""
    lines = [Text(_wrapped(view.progress, width), "bold")]
    if view.rounds:
        lines.append(Text(_wrapped(view.rounds, width)))
    if view.slow is not None:
        lines.append(Text(view.slow, "yellow" if view.has_slow else "dim"))
    return Group(Rule(view.title, align="left", style="dim", characters="─"), *lines)


def _wrapped(figures: Sequence[str], width: int) -> str:
    text = "\xa0· ".join(figure.replace(" ", "\xa0") for figure in figures)
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False).replace("\xa0", " ")


class Screen:
    """One terminal, with a few lines of ours below the output of a script, which stays as it is, byte for byte.

    Ours are a `rich.live.Live`. It is erased before the script's next bytes, and drawn again where these end a line:
    half lines, prompts and progress bars have the terminal for themselves until then. A script that moves the cursor
    between lines (a full-screen program, nested progress bars) has it for itself from then on. `written` and `show`
    may be called from several threads.
    """

    def __init__(self, terminal: BinaryIO, *, width: int | None = None) -> None:
        """With `width` None, the terminal is asked for it before every drawing."""
        self._terminal, self._lock = terminal, threading.Lock()
        self._console = Console(file=codecs.getwriter("utf-8")(terminal), force_terminal=True, width=width)  # type: ignore[arg-type]
        self._shown: RenderableType | None = None
        self._live: Live | None = None
        self._is_line_over, self._is_theirs, self._end = True, False, b""

    @property
    def width(self) -> int:
        """Characters of a line."""
        return self._console.width

    def written(self, piece: bytes) -> None:
        """Write bytes of the script."""
        with self._lock:
            self._erase()
            self._terminal.write(piece)
            self._terminal.flush()
            self._is_theirs |= _MOVES.search(self._end + piece) is not None
            self._end = (self._end + piece)[-_LONGEST:]
            self._is_line_over = self._end.endswith(b"\n") or not self._end
            self._draw()

    def show(self, lines: RenderableType) -> None:
        """Show `lines` from now on, until `close`."""
        with self._lock:
            self._shown = lines
            self._draw()

    def close(self) -> None:
        """Erase our lines for good."""
        with self._lock:
            self._erase()
            self._is_theirs = True

    def _draw(self) -> None:
        if self._shown is None or self._is_theirs or not self._is_line_over:
            return
        if self._live is not None:
            self._live.update(self._shown, refresh=True)
            return
        self._live = Live(
            self._shown,
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)

    def _erase(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class _Above(io.RawIOBase):
    """A standard stream whose bytes go above our lines."""

    def __init__(self, screen: Screen, real: BinaryIO) -> None:
        self._screen, self._real = screen, real
        self._descriptor = os.dup(real.fileno())  # by the real one `input` would write its prompt, past this stream

    def write(self, piece: bytes) -> int:  # type: ignore[override]
        self._screen.written(bytes(piece))
        return len(piece)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()

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
