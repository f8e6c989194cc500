"""The devices "sim": the CPU under another name, which refuse what GPUs refuse. Built when they are first asked for.

There are eight. `watching` has every place where a GPU would be waited for, every copy between devices, and every use
of a device that is not the current one of its thread.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from quorate.wire.real import shared, works

NAME, COUNT = "sim", 8
_SOURCE = Path(__file__).parent / "device.cpp"
_BUILT = Path(__file__).parents[3] / "build" / "second_device"
_ROOT = str(Path(__file__).parents[3] / "src" / "quorate") + os.sep
_OWN = str(Path(__file__).parent) + os.sep
_TESTS = str(Path(__file__).parents[2]) + os.sep
_WATCH = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int)


class Event(NamedTuple):
    """What a device was asked for."""

    kind: str
    """"wait", "copy", "pin", or "kernel": one on a device that is not current."""
    name: str
    current: int
    """The thread's current device."""
    index: int
    """The device that the event is on."""
    line: str
    """The innermost line of Quorate, `file:line`; empty where Quorate did not ask for it."""
    stack: str
    """All lines of Quorate, the innermost first."""
    thread: str


def lacking() -> str | None:
    """Why it cannot be built here, if it cannot."""
    return None if shutil.which("g++") else "needs g++, to build a second device for torch"


@cache
def begin() -> torch.device:
    """Register it with torch in this process, once; the first call on a machine compiles for a minute."""
    torch.ops.load_library(str(built()))
    torch.utils.rename_privateuse1_backend(NAME)
    module: Any = types.ModuleType(NAME)
    module.is_available = lambda: True
    module.device_count = lambda: COUNT
    module.current_device = lambda: int(_library().sim_current())
    module.set_device = lambda device: _library().sim_set(_index(device))
    module.device = _inside
    module.synchronize = lambda device=None: event("wait", "synchronize", device)
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda _: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.Stream, module.Event = Stream, StreamEvent
    module.current_stream = Stream
    module.stream = _on_stream
    torch._register_device_module(NAME, module)
    works.is_over = asked_until
    shared._has_begun = lambda: True
    shared._runtime = _Runtime
    torch.utils.generate_methods_for_privateuse1_backend()
    return torch.device(NAME, 0)


@cache
def _library() -> Any:
    library = ctypes.CDLL(str(built()))
    library.sim_event.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]
    return library


class _Runtime:
    """The part of CUDA's runtime that pins memory."""

    cudaError = types.SimpleNamespace(success=0)

    @staticmethod
    def cudaHostRegister(address: int, nbytes: int, flags: int) -> int:
        _library().sim_pin(ctypes.c_void_p(address), ctypes.c_size_t(nbytes))
        return 0

    @staticmethod
    def cudaHostUnregister(address: int) -> int:
        _library().sim_unpin(ctypes.c_void_p(address))
        return 0


def _index(device: Any) -> int:
    if device is None or isinstance(device, int):
        return -1 if device is None else device
    index = torch.device(device).index
    return -1 if index is None else index


def event(kind: str, name: str, device: Any = None) -> None:
    """Note an event on `device`; None: the current one."""
    _library().sim_event(kind.encode(), name.encode(), _index(device))


@contextmanager
def _inside(device: Any) -> Iterator[None]:
    """Make `device` the current one of this thread, as `torch.cuda.device`."""
    before = _library().sim_current()
    if _index(device) >= 0:
        _library().sim_set(_index(device))
    try:
        yield
    finally:
        _library().sim_set(before)


@contextmanager
def _on_stream(_: Any) -> Iterator[None]:
    yield


class Stream:
    """The only stream of a device, on which all that was begun is done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take a device and a priority."""

    def wait_event(self, event: Any) -> None:
        """It has happened."""

    def wait_stream(self, stream: Any) -> None:
        """It has nothing left to do."""

    def record_event(self, event: Any = None) -> StreamEvent:
        return event or StreamEvent()

    def synchronize(self) -> None:
        event("wait", "synchronize of a stream")


class StreamEvent:
    """What happens when a program waits for it or for a later event, or has asked for it `PATIENCE` times."""

    PATIENCE = 8
    _recorded = _happened = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take flags."""
        self._number, self._asked = 0, 0

    def record(self, stream: Any = None) -> StreamEvent:
        StreamEvent._recorded += 1
        self._number, self._asked = StreamEvent._recorded, 0
        return self

    def query(self) -> bool:
        self._asked += 1
        return self._number <= StreamEvent._happened or self._asked > self.PATIENCE

    def synchronize(self) -> None:
        event("wait", "synchronize of an event")
        StreamEvent._happened = max(StreamEvent._happened, self._number)

    def wait(self, stream: Any = None) -> None:
        """Later work of the stream comes after it."""

    @staticmethod
    def all_have_happened() -> None:
        StreamEvent._happened = StreamEvent._recorded


def asked_until(asks: Callable[[], bool], clock: Any, seconds: float) -> bool:
    """Stand for `works.is_over`, which is a wait: ask until the answer is yes, for at most `seconds`."""
    owner = id(getattr(asks, "__self__", asks))
    if not asks() and owner != _waits.get(threading.get_ident()):
        _waits[threading.get_ident()] = owner  # the next slice of a wait is of the same one
        event("wait", "a question until the answer is yes")
        StreamEvent.all_have_happened()
    return _IS_OVER(asks, clock, seconds)


_NOTES: list[Any] = []
"""Functions that have watched: another thread may be on its way into such a function, whose code must stay there."""
_IS_OVER: Any = works.is_over
_waits: dict[int, int] = {}


@contextmanager
def watching() -> Iterator[list[Event]]:
    """Note the events of this process inside, in order."""
    events: list[Event] = []

    @_WATCH
    def note(kind: bytes, name: bytes, current: int, index: int) -> None:
        lines = []
        frame: Any = sys._getframe().f_back
        while frame is not None:
            path = frame.f_code.co_filename
            if path.startswith(_TESTS) and not path.startswith(_OWN):
                break
            if path.startswith(_ROOT):
                lines.append(f"{path.removeprefix(_ROOT)}:{frame.f_lineno}")
            frame = frame.f_back
        thread = threading.current_thread().name
        place = lines[0] if lines else ""
        events.append(Event(kind.decode(), name.decode(), current, index, place, " < ".join(lines), thread))

    _NOTES.append(note)
    _library().sim_watch(note)
    try:
        yield events
    finally:
        _library().sim_watch(_WATCH())


def built() -> Path:
    """The library, compiled for this torch."""
    key = hashlib.sha256(_SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    found = _BUILT / f"{key}.so"
    if not found.exists():
        root = Path(torch.__file__).parent
        _BUILT.mkdir(parents=True, exist_ok=True)
        new = found.with_suffix(f".{os.getpid()}")
        abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
        subprocess.run(
            [
                *("g++", "-O1", "-shared", "-fPIC", "-std=c++20", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"),
                *(f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include", str(_SOURCE)),
                *(f"-L{root}/lib", "-ltorch_cpu", "-lc10", "-o", str(new)),
            ],
            check=True,
        )
        new.rename(found)
    return found
