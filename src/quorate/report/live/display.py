"""The progress of a run while it runs: a few lines at the bottom of a terminal, or a line a minute elsewhere."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rich.console import Group
from rich.rule import Rule
from rich.text import Text

from quorate.core.telling import tell
from quorate.report.live.run import LiveRun
from quorate.report.live.screen import Screen, on_terminal
from quorate.report.live.words import lateness_in_words, progress_in_words, rounds_in_words

SHOWN_EVERY, SAID_EVERY = 1.0, 60.0
"""Seconds between two states on a terminal, and between two lines elsewhere."""
MOST_BYTES = 1 << 18
"""The most bytes read in one look, of all ranks together: some 10 ms."""


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
        if screen is None:
            yield stack.enter_context(repeated(_Sentences(run).say, SAID_EVERY))
        else:
            yield stack.enter_context(repeated(_Lines(run, screen).show, SHOWN_EVERY))


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


class _Lines:
    def __init__(self, run: LiveRun, screen: Screen) -> None:
        self._run, self._screen = run, screen

    def show(self) -> None:
        """Read new rows, and show them."""
        self._run.look()
        self._screen.show(lines_of(self._run, self._screen.width))


def lines_of(run: LiveRun, width: int) -> Group:
    """Return the lines of a terminal; those that are wider than it go on in the next line, between two figures."""
    skew = run.skew()
    late, rounds = lateness_in_words(run, skew), rounds_in_words(run)
    lines = [Text(_wrapped(progress_in_words(run), width), "bold")]
    if rounds:
        lines.append(Text(_wrapped(rounds, width)))
    if late is not None:
        lines.append(Text(late, "yellow" if skew is not None and skew.slow else "dim"))
    title = f"{run.folder} (virtual time)" if run.is_virtual else str(run.folder)
    return Group(Rule(title, align="left", style="dim", characters="─"), *lines)


def _wrapped(figures: Sequence[str], width: int) -> str:
    text = "\xa0· ".join(figure.replace(" ", "\xa0") for figure in figures)
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False).replace("\xa0", " ")


class _Sentences:
    def __init__(self, run: LiveRun) -> None:
        self._run = run

    def say(self) -> None:
        """Read new rows, and print them in one line."""
        self._run.look()
        late = lateness_in_words(self._run, self._run.skew())
        words = [*progress_in_words(self._run), *rounds_in_words(self._run), *([late] if late else [])]
        tell(f"quorate: {', '.join(words)}\n")
