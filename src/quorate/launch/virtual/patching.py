"""Stand-ins: functions of the process that do something else when a virtual worker calls them.

A stand-in looks at who calls. In any other thread, and after the world has ended, it is the original: a module that
was imported by a script keeps what it imported for ever.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.scheduler import Scheduler, Strand

_scheduler: Scheduler | None = None


def scheduler() -> Scheduler:
    """The one of the world in which scripts run now."""
    assert _scheduler is not None
    return _scheduler


def here() -> Strand | None:
    """The virtual worker's thread that asks; None for any other thread."""
    return None if _scheduler is None else _scheduler.here()


class StandIns:
    """A context: functions put in place within it are the originals again afterwards. One at a time."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def __enter__(self) -> StandIns:
        if _scheduler is not None:
            raise ConfigurationError("a process can run one virtual world at a time")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _scheduler
        self._undo.close()
        _scheduler = None

    def serve(self, of: Scheduler) -> None:
        """From now on the threads of `of` meet the stand-ins."""
        global _scheduler
        _scheduler = of

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Let `owner.name` be `value`, for everyone."""
        self._undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def put(self, owner: Any, name: str, stand_in: Callable[..., Any]) -> None:
        """In virtual workers `owner.name(...)` is `stand_in(original, ...)`. Nothing if there is no such function."""
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            if here() is None:
                return original(*arguments, **named)
            return stand_in(original, *arguments, **named)

        self.replace(owner, name, call)

    def on_exit(self, action: Callable[[], None]) -> None:
        """Call `action` when the context ends."""
        self._undo.callback(action)
