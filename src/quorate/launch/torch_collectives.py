"""The script's own collectives of `torch.distributed`: a worker inside one waits for the others, and no round for it.

Under a quorum a round may need the workers that wait there, and they need the one that waits for the round. So while a
collective lasts its worker says that it waits elsewhere, and gives copies of its replica to those that need one before
they can come, as in `world.mean`. Cost: nothing until rounds are under way, then up to a millisecond a call.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from quorate.train.rest import has_running_rounds, waiting
from quorate.wire.current import Place
from quorate.wire.real.wire import RealWire

_SOON = 0.005
"""Seconds that are not worth telling anybody."""
_LOOK_EVERY = 0.0005
_POINT_TO_POINT = ("recv", "send")
_DECORATED = "func"
"""What torch's decorator of its collectives calls the function that it wraps."""


def count_as_waiting(place: Place, wire: RealWire) -> None:
    """From now on torch's collectives count as waiting where this thread calls them.

    They are replaced inside of torch's own functions, so that it makes no difference how a script has imported them.
    """
    thread = threading.get_ident()
    for name, function in vars(dist.distributed_c10d).items():
        free = function.__code__.co_freevars if inspect.isfunction(function) else ()
        if _DECORATED not in free or function.__module__ != dist.distributed_c10d.__name__:
            continue
        assert function.__closure__ is not None
        cell = function.__closure__[free.index(_DECORATED)]
        plain = cell.cell_contents
        if "async_op" in inspect.signature(plain).parameters:
            cell.cell_contents = _watched(plain, name, place, wire, thread)
        elif name in _POINT_TO_POINT:
            cell.cell_contents = _blocking(plain, name, place, wire, thread)


def _watched(plain: Callable[..., Any], name: str, place: Place, wire: RealWire, thread: int) -> Callable[..., Any]:
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread or not has_running_rounds(place):
            return plain(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        is_async, given.arguments["async_op"] = bool(given.arguments.get("async_op")), True
        work = plain(*given.args, **given.kwargs)
        if not isinstance(work, dist.Work):
            return work  # this worker is none of the group's, or several calls are made into one
        waited = _Waited(work, f"torch.distributed.{name}", place, wire)
        if is_async:
            return waited
        waited.wait()
        return None

    return call


def _blocking(plain: Callable[..., Any], name: str, place: Place, wire: RealWire, thread: int) -> Callable[..., Any]:
    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread or not has_running_rounds(place):
            return plain(*args, **kwargs)
        with waiting(place), _said(wire, f"torch.distributed.{name}"):
            return plain(*args, **kwargs)

    return call


@contextmanager
def _said(wire: RealWire, name: str) -> Iterator[None]:
    """Inside, a report about a hang tells that this worker waits in `name`."""
    endpoint, thread = wire.endpoint, threading.get_ident()
    endpoint.waits[thread] = name, endpoint.others, endpoint.clock.now()
    try:
        yield
    finally:
        endpoint.waits.pop(thread, None)


class _Waited(dist.Work):
    """A collective under way; whoever waits for it waits elsewhere than in a round."""

    def __init__(self, work: dist.Work, name: str, place: Place, wire: RealWire) -> None:
        super().__init__()
        self._work, self._name, self._place, self._wire = work, name, place, wire

    def wait(self, *limit: Any, **named: Any) -> bool:
        """As of the work itself."""
        begin = time.monotonic()
        while not self._work.is_completed() and time.monotonic() - begin < _SOON:
            time.sleep(_LOOK_EVERY / 5)
        if not self._work.is_completed() and not limit and not named:
            self._wait_elsewhere()
        return self._work.wait(*limit, **named)

    def _wait_elsewhere(self) -> None:
        with waiting(self._place) as serve, _said(self._wire, self._name):
            while not self._work.is_completed():
                serve()
                time.sleep(_LOOK_EVERY)


def _handed_on(name: str) -> Callable[..., Any]:
    def method(self: _Waited, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._work, name)(*args, **kwargs)

    return method


for _name in set(dir(dist.Work)) - set(dir(object)) - {"wait"}:
    if not _name.startswith("_"):
        setattr(_Waited, _name, _handed_on(_name))
