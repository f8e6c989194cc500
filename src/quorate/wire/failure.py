"""What stands on the board about workers that have ended.

`failed` holds JSON, `{"rank": 2, "host": "h", "reason": "was killed by signal 9 (SIGKILL)"}`: the first failure of
the run, whoever noticed it. `ended/<rank>` holds the exit status of a worker that ended normally (its launcher
writes it), in decimal.
"""

from __future__ import annotations

import json
import socket

from quorate.core.contracts import Board
from quorate.core.errors import Mismatch, PeerFailed

FAILED = "failed"


def ended(rank: int) -> str:
    """The key under which the launcher writes that `rank` ended normally."""
    return f"ended/{rank}"


def report_failure(board: Board, rank: int, reason: str, host: str | None = None, kind: str = "died") -> bool:
    """Write that `rank` failed; True if this was the first failure of the run, which is the one that stays.

    `reason` goes on where "rank 2 (host h)" ends: `was killed by signal 9 (SIGKILL)`, `raised ValueError: ...`.
    Of the kind "mismatch" (workers called different collectives) it is the whole sentence.
    """
    what = {"rank": rank, "host": socket.gethostname() if host is None else host, "reason": reason, "kind": kind}
    return board.swap(FAILED, None, json.dumps(what).encode())


def read_failure(board: Board) -> PeerFailed | Mismatch | None:
    """The first failure of the run as the error to raise; None while there is none. Never waits."""
    written = board.get(FAILED)
    return None if written is None else failure_in(written)


def failure_in(written: bytes) -> PeerFailed | Mismatch:
    """The error that the value of the key `failed` stands for."""
    try:
        what = json.loads(written)
        rank, host, reason = int(what["rank"]), str(what["host"]), str(what["reason"])
    except (ValueError, TypeError, KeyError):
        return PeerFailed("a worker failed; what it left on the board cannot be read")
    if what.get("kind") == "mismatch":
        return Mismatch(reason)
    return PeerFailed(f"rank {rank} (host {host}) {reason}", (rank,))
