"""The place of a script that is being executed, from the frames of Python."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).parents[2])


def is_in_collective(frame: FrameType | None) -> bool:
    """Return whether the code of `frame` is in a call of `torch.distributed` that the script has made."""
    while frame is not None:
        package, _, rest = str(frame.f_globals.get("__name__", "")).partition(".")
        if package == "torch" and rest.startswith("distributed."):
            return True
        if package == "quorate" and rest != "launch.worker.torch_waits":
            return False
        frame = frame.f_back
    return False


def site_of_script() -> int:
    """Return a number for the line of the script that is being executed, with those that have called it."""
    lines = list[str]()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module, file = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
        if module == "__main__" and file.startswith(_PACKAGE):  # it runs the script, on some workers in a fork
            break
        if module.partition(".")[0] not in ("torch", "quorate"):
            lines.append(f"{file}:{frame.f_lineno}")
        frame = frame.f_back
    return zlib.crc32("\n".join(lines).encode())
