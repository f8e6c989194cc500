"""How a worker ended, as data and in words."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Ending:
    """How a worker ended. `stopped_with` is the signal by which the crew ended it, if it did."""

    rank: int
    status: int
    stopped_with: signal.Signals | None = None
    why: str | None = None
    """Said instead of the status: it was on a host that was lost."""

    @property
    def in_words(self) -> str:
        """The ending as a phrase behind "rank 2": `exited with status 3`, `was killed by signal 9 (SIGKILL)`."""
        if self.why is not None:
            return self.why
        if self.status < 0 and self.stopped_with == -self.status:
            return f"was stopped with {self.stopped_with.name}"
        return status_in_words(self.status)


def status_in_words(status: int) -> str:
    """An exit status as a sentence goes on after the name of the process."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        return f"was killed by signal {-status}"
    return f"was killed by signal {-status} ({name})"
