"""A script in a process that was forked, not started: what `python script.py` does, from `__main__` to the status."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import InspectLoader
from importlib.machinery import SourceFileLoader
from itertools import chain
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

from quorate.core.telling import tell

_FILES = (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
CANNOT_OPEN = 2
"""The exit status of `python` for a script that is not there."""


_KEPT: list[object] = []
"""Objects that end with the process, and not before."""


def launched_rank() -> int:
    """Return the rank that the launcher gave this program, which has not joined yet."""
    return int(os.environ["RANK"])


def live_as_main(script: str, arguments: Sequence[str] = (), *, is_module: bool = False) -> NoReturn:
    """Execute `script` (or the module of that name, as after `-m`) as `__main__`, and end this process as it ends.

    To be called in the main thread, with no folder of a script in `sys.path` yet. Tracebacks begin in the script. The
    end is as in a process of its own: the traceback or the message of `SystemExit`, waiting for threads, functions
    registered with `atexit`, `__main__` cleared, files flushed. The clearing of modules that follows in python is left
    out, as it takes longer than a short script.
    """
    ending: BaseException | None = None
    main = sys.modules["__main__"] = ModuleType("__main__")
    try:
        _execute(main, script, arguments, is_module)
    except BaseException as error:
        ending = error
        raise
    finally:
        _leave(main, ending)


def _execute(main: ModuleType, script: str, arguments: Sequence[str], is_module: bool) -> None:
    main.__dict__.update(__builtins__=__builtins__, __annotations__={}, __cached__=None)
    sys.excepthook = _FromTheScriptOn(main)
    sys.orig_argv = [sys.executable, *(["-m"] if is_module else []), script, *arguments]
    sys.argv = ["-m" if is_module else script, *arguments]
    named = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:0] = [folder for folder in named if folder not in sys.path]  # of this worker, not of its parent
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.realpath(script)))
    exec(_module(script, main) if is_module else _file(script, main), main.__dict__)


def _leave(main: ModuleType, ending: BaseException | None) -> NoReturn:
    status = _told(ending)
    if isinstance(ending, SystemExit):
        with suppress(SystemExit):
            sys.exit(ending.code)  # a worker that has joined notes the status there, and `raise SystemExit` passes by
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    threading.excepthook = lambda args: None  # daemon threads that find `__main__` empty
    _KEPT.extend(_with_backends(main))
    main.__dict__.clear()
    gc.collect()
    flush_files()
    if isinstance(ending, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


def _with_backends(main: ModuleType) -> list[object]:
    """Return the objects that hold process groups of torch.

    A script that has destroyed its groups still holds them by its models. In its clean-up gloo may wait for ever for a
    worker that has ended, so these objects are kept.
    """
    distributed, parallel = sys.modules.get("torch.distributed"), sys.modules.get("torch.nn.parallel")
    if distributed is None or parallel is None or not distributed.is_available():
        return []
    kinds = distributed.ProcessGroup, parallel.DistributedDataParallel
    # The values are in no list that `gc.get_objects` would find: it would hold itself, and delay the ends of objects.
    return [x for x in chain(main.__dict__.values(), gc.get_objects()) if issubclass(type(x), kinds)]


def flush_files() -> None:
    """Write what open files of this process still hold, as python does at its end and `os._exit` does not."""
    for kept in gc.get_objects():
        if issubclass(type(kept), _FILES) and not kept.closed:
            with suppress(OSError, ValueError):
                kept.flush()


def _told(ending: BaseException | None) -> int:
    """The exit status, after what python says about an end like this."""
    if ending is None:
        return 0
    if not isinstance(ending, SystemExit):
        sys.excepthook(type(ending), ending, ending.__traceback__)
        return 1
    if ending.code is None or isinstance(ending.code, int):
        return (ending.code or 0) & 0xFF
    sys.stdout.flush()
    tell(f"{ending.code}\n")
    return 1


def _file(script: str, main: ModuleType) -> CodeType:
    path = os.path.join(os.getcwd(), script)
    main.__dict__.update(__file__=path, __loader__=SourceFileLoader("__main__", path))
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        tell(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
        raise SystemExit(CANNOT_OPEN) from None
    return compile(source, path, "exec", dont_inherit=True)


def _module(name: str, main: ModuleType) -> CodeType:
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    code = spec.loader.get_code(spec.name) if spec and isinstance(spec.loader, InspectLoader) else None
    if spec is None or code is None:
        tell(f"{sys.executable}: No module named {name}\n")
        raise SystemExit(1)
    main.__dict__.update(
        __file__=spec.origin,
        __cached__=spec.cached,
        __loader__=spec.loader,
        __package__=spec.parent,
        __spec__=spec,
    )
    sys.argv[0] = spec.origin or name
    return code


class _FromTheScriptOn:
    """The interpreter's own `sys.excepthook`, without the frames that lead to the script."""

    def __init__(self, main: ModuleType) -> None:
        self._main = main

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        own = trace
        while own is not None and own.tb_frame.f_globals is not self._main.__dict__:
            own = own.tb_next
        if own is None and not isinstance(error, SyntaxError):  # the script has not begun
            own = trace
        sys.__excepthook__(kind, error.with_traceback(own), own)
