"""Who is at work in a run's folder: one launcher at a time. The kernel forgets it with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quorate.core.errors import ConfigurationError


def is_held(folder: Path) -> bool:
    """Whether a launcher is at work in `folder`; False where that is not known."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


@contextmanager
def held(
    folder: Path, why_not: str = "the run in {} is still going on; wait for it, or end it first"
) -> Iterator[None]:
    """Inside, no other launcher goes to work in `folder`. Raises `ConfigurationError`, `why_not`, where one is at work.

    A file system that knows no locks holds nobody off.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(why_not.format(folder)) from None
        except OSError:
            pass
        yield
    finally:
        with suppress(OSError):
            os.close(handle)
