"""Progress of a run in a notebook: the live page, in the output of the cell; elsewhere as `quorate run` shows it."""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from quorate.report.live.display import progress_shown, repeated
from quorate.report.live.page import LivePage

_EVERY = 2.0
"""Seconds between two pages."""
_MOST_BYTES = 1 << 20
_TALL = 620


def display_of_notebook() -> Any | None:
    """Return `IPython.display` in a kernel of a notebook, else None, without importing IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:
        return None
    import IPython.display

    return IPython.display


def framed(page: str, tall: int) -> str:
    """Return a page in a frame of its own, which keeps its style apart from the notebook's."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" style="width: 100%; height: {tall}px; border: 0" '
        'sandbox="allow-scripts" loading="lazy"></iframe>'
    )


class _Shown:
    """HTML that a notebook shows."""

    def __init__(self, page: str) -> None:
        self._page = page

    def _repr_html_(self) -> str:
        return self._page


@contextmanager
def progress_of(folder: Path, *, is_wanted: bool = True) -> Iterator[None]:
    """Show the progress of the run in `folder` inside the context, and in a notebook its end too."""
    shows = display_of_notebook()
    with ExitStack() as stack:
        if is_wanted and shows is None:
            can_draw = os.environ.get("TERM", "") not in ("", "dumb")
            stack.enter_context(progress_shown(folder, can_draw=can_draw))()
        elif is_wanted and shows is not None:
            page = LivePage(folder, most_bytes=_MOST_BYTES)
            handle = shows.display(_Shown("<p>starting</p>"), display_id=True)

            def update(*, is_last: bool = False) -> None:
                page.state(lists=is_last)
                page.sections()
                handle.update(_Shown(framed(page.document(is_still=True), _TALL)))

            stack.callback(update, is_last=True)
            stack.enter_context(repeated(update, _EVERY))()
        yield
