"""Text files that a user names: regular files of a plausible size, never a device or a pipe to wait for."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from quorate.core.errors import ConfigurationError

MOST_BYTES = 64 << 20


def text_of(path: Path, label: str) -> str:
    """Return the content of a file, which errors call `label` ("the trace").

    Raises `ConfigurationError` where it is no regular file, is longer than `MOST_BYTES`, cannot be read or is no text;
    `FileNotFoundError` where it does not exist.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # opening a pipe would wait for its writer
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigurationError(
                    f"{label} {path} is not a regular file, but {_kind(os.fstat(file.fileno()).st_mode)}"
                )
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ConfigurationError(f"{label} {path} is longer than {MOST_BYTES >> 20} MiB")
        return data.decode()
    except FileNotFoundError:
        raise
    except IsADirectoryError:
        raise ConfigurationError(f"{label} {path} is a folder, not a file") from None
    except OSError as error:
        raise ConfigurationError(f"{label} {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{label} {path} cannot be read: it is not text") from None


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device"
