"""The wire of the worker in which the calling code runs.

In the real world a process is one worker, so there is one wire per process. In the virtual world every worker is a
thread, so a thread's own wire takes precedence over the process's.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.script_errors import OneSentence

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

T = TypeVar("T")


class Place:
    """One worker's place: its wire, the context of each layer, and the calls to make before it leaves."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._contexts: dict[type, object] = {}
        self.leaving: list[Callable[[], None]] = []
        self.hooks: list[RemovableHandle] = []
        """Hooks of the whole process, which are removed also where this worker ends with an error."""

    def context(self, kind: type[T]) -> T:
        """Return this worker's only `kind`, which the first call makes, without arguments."""
        if kind not in self._contexts:
            self._contexts[kind] = kind()
        context = self._contexts[kind]
        assert isinstance(context, kind)
        return context

    def provide(self, context: object) -> None:
        """Make `context`, which was made with arguments, the only one of its kind; nobody has asked for it before."""
        assert type(context) not in self._contexts, f"{type(context).__name__} was asked for before it was provided"
        self._contexts[type(context)] = context

    def leave(self) -> None:
        """Run the calls in `leaving`, the latest first; each once."""
        while self.leaving:
            self.leaving.pop()()


_thread = threading.local()
_process: Place | None = None


def enter(wire: Wire, *, thread_only: bool = False) -> Place:
    """Make `wire` the current one of this process, or of this thread alone; return its place."""
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
    """Undo `enter`, without the calls in `leaving`; remove the hooks of this worker."""
    global _process
    entered = getattr(_thread, "place", None) if thread_only else _process
    for hook in () if entered is None else entered.hooks:
        hook.remove()
    if thread_only:
        _thread.place = None
    else:
        _process = None


def place() -> Place | None:
    """Return the place of the worker in which this code runs; None before `enter`."""
    thread_place: Place | None = getattr(_thread, "place", None)
    return thread_place if thread_place is not None else _process


def is_of_thread() -> bool:
    """Return whether the worker in which this code runs is a thread: others do not see its place."""
    return getattr(_thread, "place", None) is not None


def here() -> Place:
    """Return the place of the worker in which this code runs. Raises `ConfigurationError` before `quorate.join()`."""
    current = place()
    if current is None:
        sys.excepthook = OneSentence(names_line=True)
        raise ConfigurationError("no world has been joined; call quorate.join() first")
    return current
