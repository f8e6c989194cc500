"""Where in the user's own files something was called wrongly, in place of a traceback through ours."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep


def script_line(trace: TracebackType | None) -> str:
    """` (train.py, line 12)`: the last line of a file that is not ours on the way to the error; empty without one."""
    found = ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith("<") and not os.path.realpath(name).startswith(_OURS):
            found = f" ({os.path.relpath(name)}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return found
