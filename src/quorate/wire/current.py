"""Which wire the code that asks is running on.

In the real world a process is one worker, so there is one wire per process. In the virtual world every worker is a
thread, so a thread's own wire goes before the process's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError

T = TypeVar("T")


class Place:
    """One worker's place: its wire, what each layer keeps for it, and what it still does before it leaves."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._contexts: dict[type, object] = {}
        self.leaving: list[Callable[[], None]] = []

    def context(self, kind: type[T]) -> T:
        """This worker's `kind`, of which there is one: made, without arguments, when it is first asked for."""
        if kind not in self._contexts:
            self._contexts[kind] = kind()
        found = self._contexts[kind]
        assert isinstance(found, kind)
        return found

    def leave(self) -> None:
        """Run what was to be done before leaving, the latest first; each once."""
        while self.leaving:
            self.leaving.pop()()


_thread = threading.local()
_process: Place | None = None


def enter(wire: Wire, *, thread_only: bool = False) -> Place:
    """Make `wire` the current one of this process, or of this thread alone; returns its place."""
    global _process
    place = Place(wire)
    if thread_only:
        _thread.place = place
    else:
        _process = place
    return place


def adopt(place: Place | None) -> None:
    """Let this thread share `place`: a task beside a worker has its worker's place."""
    _thread.place = place


def forget(*, thread_only: bool = False) -> None:
    """Undo `enter`; what was to be done before leaving is not done."""
    global _process
    if thread_only:
        _thread.place = None
    else:
        _process = None


def place() -> Place | None:
    """The place of the worker this code runs in; None before `enter`."""
    mine: Place | None = getattr(_thread, "place", None)
    return mine if mine is not None else _process


def here() -> Place:
    """The place of the worker this code runs in. Raises `ConfigurationError` before `quorate.join()`."""
    found = place()
    if found is None:
        raise ConfigurationError("no world has been joined; call quorate.join() first")
    return found
