"""A function and its arguments on the way to the processes that call it, and what they return on the way back.

A function of a notebook or of `__main__` is in no module that a fresh process could import. So cloudpickle writes it to
a file in a folder that no other user may enter, from this process to the processes that it starts. The folder is
removed with the run. What comes back is no pickle: JSON and tensors.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from quorate.checkpoint.encoding import decoded, encoded
from quorate.checkpoint.tensor_file import read_tensors, write_tensors
from quorate.core.errors import ConfigurationError
from quorate.core.installed import missing_extra

_CANNOT = "quorate.launch cannot bring back"


def file_of(function: Callable[..., Any]) -> str:
    """Return the path of the function's source; the empty string if it is unknown."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:  # an object with a method that is called
        code = getattr(type(function).__dict__.get("__call__"), "__code__", None)
    return str(getattr(code, "co_filename", ""))


def send(path: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Write function and arguments. Raises `MissingExtra` without cloudpickle, `ConfigurationError` if it cannot."""
    try:
        import cloudpickle
    except ImportError:
        need = "quorate.launch(n=...) sends the function to processes with cloudpickle (virtual=N needs none)"
        raise missing_extra(need, extra="notebook", package="cloudpickle") from None
    file = file_of(function)
    about = {"path": sys.path, "file": file, "lines": linecache.getlines(file) if file else []}
    try:
        written = cloudpickle.dumps((function, args))
    except Exception as error:
        raise ConfigurationError(
            f"{getattr(function, '__name__', 'the function')} or an argument cannot be sent to other processes: {error}"
        ) from error
    path.write_bytes(json.dumps(about).encode() + b"\n" + written)


def receive(path: Path) -> tuple[Callable[..., Any], tuple[Any, ...], str]:
    """Return function, arguments and source file as `send` wrote them; extend `sys.path` and `linecache`."""
    import cloudpickle

    header, _, written = path.read_bytes().partition(b"\n")
    about = json.loads(header)
    sys.path[:] = [*sys.path, *(folder for folder in about["path"] if folder not in sys.path)]
    if about["lines"]:
        linecache.cache[about["file"]] = (sum(map(len, about["lines"])), None, about["lines"], about["file"])
    function, args = cloudpickle.loads(written)
    return function, args, about["file"]


def traceback_from(error: BaseException, file: str) -> str:
    """Return the traceback of `error` from the first frame in `file` on, or the full one."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))


@dataclass(frozen=True)
class Raised:
    """The error that ended a worker."""

    rank: int
    time: float
    kind: str
    """The name of its class."""
    message: str
    trace: str


def put_result(folder: Path, rank: int, value: Any) -> None:
    """Write the value that a worker returned. Raises `ConfigurationError` for a type that cannot be sent."""
    tensors: dict[str, Tensor] = {}

    def put(name: str, x: Tensor) -> str:
        tensors[name] = x.cpu()
        return name

    text = json.dumps(encoded(value, "result", put, cannot=_CANNOT))
    path = folder / f"result-{rank}.safetensors"
    path.unlink(missing_ok=True)
    write_tensors(path, tensors, {"value": text})


def result_in(folder: Path, rank: int) -> Any:
    """Return the value that `put_result` wrote; None without one."""
    path = folder / f"result-{rank}.safetensors"
    if not path.is_file():
        return None
    tensors, metadata = read_tensors(path)
    return decoded(metadata["value"], tensors)


def put_raised(folder: Path, rank: int, error: BaseException, file: str) -> None:
    """Write the error that ended a worker."""
    about = {"rank": rank, "time": time.time(), "kind": type(error).__name__, "message": str(error)}
    text = json.dumps({**about, "trace": traceback_from(error, file)})
    new = folder / f"raised-{rank}.json.new"
    new.write_text(text, encoding="utf-8")
    os.replace(new, folder / f"raised-{rank}.json")


def raised_in(folder: Path) -> list[Raised]:
    """Return the errors that ended workers, the earliest first."""
    read = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("raised-*.json")]
    return sorted((Raised(**failure) for failure in read), key=lambda failure: failure.time)
