"""What `quorate run` shows of a run beside it: progress on the terminal, and a live page where it is asked for."""

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
    """Inside, the run is shown; its progress from when what is yielded is called.

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
