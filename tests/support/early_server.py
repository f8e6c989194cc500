"""The server that forks the processes of tests, forked from pytest: what both need is imported once."""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing.forkserver
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import resource_tracker, util
from typing import Any, NoReturn

from tests.support.processes import PRELOADED

# `multiprocessing` has no types for what it is made of.
_server: Any = multiprocessing.forkserver
_started: Any = util


def start() -> None:
    """Start the server of `tests.support.processes` now, from the main thread."""
    with warnings.catch_warnings():
        _warn_as_python_does()
        for name in PRELOADED:
            importlib.import_module(name)
        resource_tracker.ensure_running()
        by_program, _started.spawnv_passfds = _started.spawnv_passfds, _fork
        try:
            _server.ensure_running()
        finally:
            _started.spawnv_passfds = by_program


def _warn_as_python_does() -> None:
    warnings.resetwarnings()
    for kind in (ResourceWarning, ImportWarning, PendingDeprecationWarning, DeprecationWarning):
        warnings.simplefilter("ignore", kind)
    warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")


def _fork(path: str, words: Sequence[str], kept: Sequence[int]) -> int:
    """In place of a program: a process that executes its code."""
    pid = os.fork()
    if pid == 0:
        try:
            _serve(words[-1], kept)
        finally:
            os._exit(1)
    return pid


def _serve(code: str, kept: Sequence[int]) -> NoReturn:
    """What is pytest's own is put away, and of open files all but those `kept`."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(name) for name in os.listdir("/dev/fd")]:
        if number > 2 and number not in kept:
            with suppress(OSError):  # the one that listed them
                os.dup2(nothing, number, inheritable=False)  # closed, it would be another's file soon
    sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_pytest")]
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
    threading.excepthook = threading.__excepthook__
    faulthandler.disable()
    _server._forkserver._lock = threading.Lock()  # held by who starts a server
    exec(code, {})
    os._exit(0)
