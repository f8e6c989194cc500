"""What stands on the board about workers that have ended.

`failed` holds JSON, `{"rank": 2, "host": "h", "reason": "was killed by signal 9 (SIGKILL)"}`: the first failure of
the run, whoever noticed it. `ended/<rank>` holds the exit status of a worker that ended normally (its launcher
writes it), in decimal. `failed at` holds JSON, `{"strategy": "quorum", "round": 17}`: where the training stood for the
first worker that left because of the failure.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Literal

from quorate.core.contracts import Board
from quorate.core.errors import Diverged, Failure, Mismatch, NotFinite, PeerFailed

Kind = Literal["died", "mismatch", "diverged", "not finite"]
FAILED = "failed"
_AT = "failed at"


def ended(rank: int) -> str:
    """The key under which the launcher writes that `rank` ended normally."""
    return f"ended/{rank}"


def report_failure(
    board: Board, rank: int, reason: str, host: str | None = None, kind: Kind = "died", ranks: Sequence[int] = ()
) -> bool:
    """Write that `rank` failed; True if this was the first failure of the run, which is the one that stays.

    `reason` goes on where "rank 2 (host h)" ends: `was killed by signal 9 (SIGKILL)`, `raised ValueError: ...`. Of the
    other kinds, which concern several workers, it is the whole sentence, and `ranks` are those to blame.
    """
    what = {
        "rank": rank,
        "host": socket.gethostname() if host is None else host,
        "reason": reason,
        "kind": kind,
        "ranks": list(ranks),
    }
    return board.swap(FAILED, None, json.dumps(what).encode())


def read_failure(board: Board) -> Failure | None:
    """The first failure of the run as the error to raise; None while there is none. Never waits."""
    written = board.get(FAILED)
    return None if written is None else failure_in(written)


def failure_in(written: bytes) -> Failure:
    """The error that the value of the key `failed` stands for."""
    try:
        what = json.loads(written)
        rank, host, reason = int(what["rank"]), str(what["host"]), str(what["reason"])
        ranks = tuple(int(one) for one in what.get("ranks", ()))
    except (ValueError, TypeError, KeyError):
        return PeerFailed("a worker failed; what it left on the board cannot be read")
    kind = what.get("kind")
    if kind == "mismatch":
        return Mismatch(reason)
    if kind == "diverged":
        return Diverged(reason, ranks)
    if kind == "not finite":
        return NotFinite(reason, ranks)
    return PeerFailed(f"rank {rank} (host {host}) {reason}", (rank,))


def host_of(board: Board, rank: int) -> str:
    """The host of `rank`, as it wrote when it came; in a world without hosts "virtual"."""
    written = board.get(f"generation/0/host/{rank}")
    return "virtual" if written is None else written.decode()


def note_place(board: Board, strategy: str, number: int) -> None:
    """Write where the training stood when it failed: round `number` of `strategy`. What is written first stays."""
    board.swap(_AT, None, json.dumps({"strategy": strategy, "round": number}).encode())


def noted_place(board: Board) -> str:
    """Where it stood, as a sentence goes on: ` in round 17 of quorum`; nothing where nobody has said."""
    written = board.get(_AT)
    if written is None:
        return ""
    try:
        what = json.loads(written)
        return f" in round {int(what['round'])} of {what['strategy']}"
    except (ValueError, TypeError, KeyError):
        return ""
