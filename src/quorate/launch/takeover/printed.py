"""A metric that a script prints, found in its lines by a pattern, and logged as by `quorate.log`."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import Any

from quorate.launch.worker.recording import log
from quorate.wire import current


def log_printed(asked: str) -> None:
    """Log each number that a printed line has; `asked` is the metric's name, "=", and the pattern of a line."""
    name, _, pattern = asked.partition("=")
    compiled = re.compile(pattern)
    sys.stdout, sys.stderr = (_Lines(stream, name, compiled) for stream in (sys.stdout, sys.stderr))


class _Lines:
    """A stream that looks at complete lines."""

    def __init__(self, stream: Any, name: str, pattern: re.Pattern[str]) -> None:
        self._stream, self._name, self._pattern = stream, name, pattern
        self._line = ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._look(line)
        return int(self._stream.write(text))

    def _look(self, line: str) -> None:
        match = self._pattern.search(line)
        if match is not None and current.place() is not None:
            with suppress(ValueError):
                log(**{self._name: float(match[1])})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
