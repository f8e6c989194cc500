"""The line of a wrong call in the user's own files, in place of a traceback through ours."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from types import TracebackType

_OURS = str(Path(__file__).resolve().parents[2]) + os.sep
_LIBRARIES = tuple(os.path.realpath(sysconfig.get_path(kind)) + os.sep for kind in ("stdlib", "purelib", "platlib"))


def script_line(trace: TracebackType | None) -> str:
    """` (train.py, line 12)`: the last line of a file of the user's on the way to the error; empty without one.

    Files of installed packages, torch's among them, come into question where there are no others.
    """
    of_user, of_libraries = "", ""
    while trace is not None:
        name = os.path.realpath(trace.tb_frame.f_code.co_filename)
        if not trace.tb_frame.f_code.co_filename.startswith("<") and not name.startswith(_OURS):
            line = f" ({os.path.relpath(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno})"
            if name.startswith(_LIBRARIES):
                of_libraries = line
            else:
                of_user = line
        trace = trace.tb_next
    return of_user or of_libraries
