"""The display of a run during `quorate run`: progress on the terminal, and a live page with `--watch`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from quorate.cli.plan import RunPlan
from quorate.core.telling import tell
from quorate.report.live.display import progress_shown
from quorate.report.live.server import LiveServer


@contextmanager
def shown_beside(plan: RunPlan) -> Iterator[Callable[[], None]]:
    """Show a run inside the context; its progress from the call of the yielded function on.

    Raises `ConfigurationError` where a page is asked for and nothing can listen.
    """
    with ExitStack() as stack:
        if plan.is_watched:
            server = stack.enter_context(LiveServer(plan.request.folder))
            tell(f"quorate: live page: {server.address}\n")
        if plan.shows_progress:
            can_draw = os.environ.get("TERM", "") not in ("", "dumb")
            yield stack.enter_context(progress_shown(plan.request.folder, can_draw=can_draw))
        else:
            yield lambda: None
