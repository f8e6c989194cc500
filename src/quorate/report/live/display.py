"""Progress of a run beside it: a few lines at the bottom of a terminal, or a line a minute where there is none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import StringIO
from pathlib import Path

from quorate.core.telling import tell
from quorate.report.live.run import LiveRun
from quorate.report.live.screen import Screen, on_terminal
from quorate.report.live.words import lateness_in_words, progress_in_words, rounds_in_words

SHOWN_EVERY, SAID_EVERY = 1.0, 60.0
"""Seconds between two states on a terminal, and between two lines elsewhere."""
MOST_BYTES = 1 << 18
"""Read in one look, of all ranks together: some 10 ms."""


@contextmanager
def progress_shown(folder: Path, *, can_draw: bool = True) -> Iterator[Callable[[], None]]:
    """Inside, progress of the run in `folder` is shown on stderr, by a thread that reads its records; it begins when
    what is yielded is called, so that processes can be forked before.

    On a terminal: step, rates, loss, what was logged, time left where it is known, and who is slow, below what the
    script prints. Elsewhere, and where it `can_draw` nothing (`TERM=dumb`): the same in one line a minute.
    Cost: at most `MOST_BYTES` are read in each look; rows beyond them are skipped.
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
    """Inside, once what is yielded is called, a thread calls `look` every so many seconds; `OSError` and `ValueError`
    end that."""
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
        """Read what is new, and show it."""
        self._run.look()
        self._screen.show(styled(self._run, self._screen.width))


def styled(run: LiveRun, width: int) -> list[str]:
    """The lines of a terminal of this width, with colours."""
    from rich.console import Console
    from rich.rule import Rule
    from rich.text import Text

    skew = run.skew()
    late = lateness_in_words(run, skew)
    rounds = rounds_in_words(run)
    words = [("bold", " · ".join(progress_in_words(run)))]
    if rounds:
        words.append(("", " · ".join(rounds)))
    if late is not None:
        words.append(("yellow" if skew is not None and skew.slow else "dim", late))
    console = Console(file=StringIO(), force_terminal=True, width=max(20, width - 1), color_system="standard")
    with console.capture() as captured:
        title = f"{run.folder} (virtual time)" if run.is_virtual else str(run.folder)
        console.print(Rule(title, align="left", style="dim", characters="─"))
        for style, line in words:
            console.print(Text(line, style=style), overflow="ellipsis", no_wrap=True)
    return captured.get().splitlines()


class _Sentences:
    def __init__(self, run: LiveRun) -> None:
        self._run = run

    def say(self) -> None:
        """Read what is new, and say it in one line."""
        self._run.look()
        late = lateness_in_words(self._run, self._run.skew())
        words = [*progress_in_words(self._run), *rounds_in_words(self._run), *([late] if late else [])]
        tell(f"quorate: {', '.join(words)}\n")
