"""Errors that end a script in one sentence: its exit status, and the line of the script."""

from __future__ import annotations

import atexit
import os
import sys
import sysconfig
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from quorate.core.errors import ConfigurationError, MissingExtra, QuorateError
from quorate.core.telling import flush, tell

E = TypeVar("E", bound=BaseException)
_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_GENERATED = f"{os.sep}__autograph_generated_file"
_LIBRARIES = tuple(os.path.realpath(sysconfig.get_path(kind)) + os.sep for kind in ("stdlib", "purelib", "platlib"))


def status_after_error(kind: type[BaseException]) -> int:
    """Return the exit status of a process that an error of this kind has ended."""
    if issubclass(kind, KeyboardInterrupt):
        return 130
    return 3 if issubclass(kind, MissingExtra) else 2 if issubclass(kind, ConfigurationError) else 1


class CallbackErrors:
    """Errors in whose place another library raises one of its own to the script, as for those in its callbacks."""

    def __init__(self) -> None:
        self.by_text: dict[str, QuorateError] = {}
        """By a part of the text of the library's error."""

    def note(self, error: QuorateError) -> None:
        """Expect an error that repeats this one's sentence."""
        self.by_text[str(error)] = error


def own_error(error: E, callbacks: CallbackErrors) -> E | QuorateError:
    """Return the `QuorateError` whose sentence the error of another library repeats; `error` where there is none.

    TensorFlow raises its own error for one in a callback. Keras makes another of the same class, with more text.
    """
    own: E | QuorateError = error
    text, cause = str(error), error.__cause__ or error.__context__
    for part, noted in callbacks.by_text.items():
        if part in text:
            own = noted
    while cause is not None:
        if isinstance(cause, QuorateError) and type(cause) is type(error) and str(cause) in text:
            own = cause
        cause = cause.__cause__ or cause.__context__
    return own if own is error else own.with_traceback(error.__traceback__)


def script_line(trace: TracebackType | None) -> str:
    """` (train.py, line 12)`: the last line of a file of the user's on the way to the error; empty without one.

    Files of installed packages, torch's among them, come into question where there are no others. Copies that
    AutoGraph of TensorFlow compiles do not: the line of the call counts.
    """
    of_user, of_libraries = "", ""
    while trace is not None:
        name = os.path.realpath(trace.tb_frame.f_code.co_filename)
        is_generated = trace.tb_frame.f_code.co_filename.startswith("<") or _GENERATED in name
        if not is_generated and not name.startswith(_PACKAGE):
            line = f" ({os.path.relpath(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno})"
            if name.startswith(_LIBRARIES):
                of_libraries = line
            else:
                of_user = line
        trace = trace.tb_next
    return of_user or of_libraries


class OneSentence:
    """A `sys.excepthook` for the time before a world is joined; other errors are shown as before.

    `names_line`: whether the sentence ends with the line of the script.
    """

    def __init__(self, *, names_line: bool) -> None:
        self._names_line, self._shown = names_line, sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        error = own_error(error, CallbackErrors())
        if issubclass(kind, KeyboardInterrupt):
            tell("quorate: interrupted\n")
        elif issubclass(kind, QuorateError):
            tell(f"quorate: {error}{script_line(trace) if self._names_line else ''}\n")
        else:
            self._shown(kind, error, trace)
            return
        flush()
        atexit.register(os._exit, status_after_error(kind))
