"""How the workers of a run ended, as data and in words: the cause first, what followed from it in one line."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quorate.core.errors import Failure, Mismatch, PeerFailed, ranks_in_words

LINES_SHOWN = 20
_TAIL_BYTES = 2**14


def log_of(folder: Path, rank: int) -> Path:
    """Return the log file of a rank."""
    return folder / f"rank-{rank}.log"


def cause_of(endings: Mapping[int, Ending], first: Ending | None, reported: Failure | None) -> int | None:
    """The rank with which it began, as far as one is known: the one on the board, or the first that ended badly."""
    ranks = () if reported is None or isinstance(reported, Mismatch) else reported.ranks
    if len(ranks) == 1 and ranks[0] in endings:
        return ranks[0]
    return None if first is None or reported is not None else first.rank


def verdict(
    endings: Mapping[int, Ending], first: Ending | None, reported: Failure | None, folder: Path, at: str = ""
) -> str:
    """Why the run failed, and where it stood (`at`); where the log of the rank it began with is and how it ends; what
    became of the others.

    The end of rank 0's log is left out: it has been shown already.
    """
    rank = cause_of(endings, first, reported)
    if reported is not None:
        said = str(reported).partition("\n")[0].rstrip(".")
    else:
        said = "" if rank is None else f"rank {rank} {endings[rank].in_words}"
    if isinstance(reported, PeerFailed) or reported is None:
        said += at  # the others say it themselves
    lines = [f"{said}; the logs are in {folder}" if rank is None else f"{said}; its log is {log_of(folder, rank)}"]
    if rank is not None and rank != 0:
        lines += [f"  | {line}" for line in last_lines(log_of(folder, rank))]
    others = [ending for ending in endings.values() if ending.rank != rank and ending.status != 0]
    if others:
        lines.append(f"After that {_together(others)}.")
    return "\n".join(lines)


def nobody_joined(servers: int) -> str:
    """Return the sentence for a run with so many servers that has ended well without any worker."""
    return f"no worker has called quorate.join(), so --servers {servers} has served nobody; call it, or leave it out"


def last_lines(log: Path, count: int = LINES_SHOWN) -> list[str]:
    """The last lines of a log that may be long, and need not be text; none where it cannot be read."""
    try:
        with open(log, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            tail = file.read()
    except OSError:
        return []
    lines = tail.decode(errors="replace").splitlines()
    return [line for line in lines if line.strip()][-count:]


def _together(endings: list[Ending]) -> str:
    alike: dict[str, list[int]] = {}
    for ending in sorted(endings, key=lambda ending: ending.rank):
        alike.setdefault(ending.in_words, []).append(ending.rank)
    phrases = []
    for words, ranks in alike.items():
        plural = words.replace("was ", "were ", 1) if len(ranks) > 1 and words.startswith("was ") else words
        phrases.append(f"{ranks_in_words(ranks)} {plural}")
    return ", ".join(phrases)


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
