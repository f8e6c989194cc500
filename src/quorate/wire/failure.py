"""What stands on the board about workers that have ended.

`failed` holds JSON, `{"rank": 2, "host": "h", "reason": "was killed by signal 9 (SIGKILL)"}`: the first failure of
the run, whoever noticed it; with `seat`, where the model is in shards (`replica 1, shard 0`). `ended/<rank>` holds
the exit status of a worker that ended normally (its launcher writes it), in decimal. `failed at` holds JSON,
`{"strategy": "quorum", "round": 17}`: where the training stood for the first worker that left because of the failure.
`outlives` holds the number of workers once all have said that a death leaves them going (0: something needs
everyone), and `gone` those that were outlived. `outlives errors` is 1 where a worker's own error counts as its death,
and `erred/<rank>` is there for those of which that was so. `training/<rank>` is 1 from the beginning of that worker's
first training to the end of its last. `server/<rank>` is there for ranks that keep parameters for the workers: 1
where nobody outlives their death, 0 where others keep the same.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quorate.core.contracts import Board
from quorate.core.errors import Diverged, Failure, Mismatch, NotFinite, PeerFailed, WireTimeout, ranks_in_words
from quorate.wire.naming import seat_in_words

GONE = "gone"
"""Holds JSON, `[{"rank": 2, "host": "h", "reason": "was killed by ..."}, {"came": 4}, ...]`: the workers that the
others have outlived, and those that have joined them since, in the order in which that was noticed."""
_OUTLIVES = "outlives"
_OUTLIVES_ERRORS = "outlives errors"
_ERRED = "erred"
_TRAINING = "training"
_SERVER = "server"
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
    if kind == "died" and is_server(board, rank):
        reason = f"was a server, and {reason}"
    what = {
        "rank": rank,
        "host": socket.gethostname() if host is None else host,
        "reason": reason,
        "seat": seat_in_words(board, rank),
        "kind": kind,
        "ranks": list(ranks),
    }
    return board.swap(FAILED, None, json.dumps(what).encode())


def read_failure(board: Board) -> Failure | None:
    """The first failure of the run as the error to raise; None while there is none. Never waits."""
    written = board.peek(FAILED)
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
    seat = what.get("seat")
    return PeerFailed(f"rank {rank} ({f'{seat}; ' if seat else ''}host {host}) {reason}", (rank,))


def host_of(board: Board, rank: int) -> str:
    """The host of `rank`, as it wrote when it came; in a world without hosts "virtual"."""
    written = board.get(f"generation/0/host/{rank}")
    return "virtual" if written is None else written.decode()


def has_joined(board: Board, rank: int) -> bool:
    """Whether `rank` has come to `quorate.join()`."""
    return board.get(f"generation/0/host/{rank}") is not None


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


@dataclass(frozen=True)
class Gone:
    """A worker that died, and the others went on."""

    rank: int
    host: str
    reason: str

    @property
    def in_words(self) -> str:
        """`rank 2 (host h) was killed by signal 9 (SIGKILL)`."""
        return f"rank {self.rank} (host {self.host}) {self.reason}"


def allow_going_on(board: Board, size: int, *, name: str) -> None:
    """Called by each of `size` workers for the training `name`: when all have, a death leaves the others going."""
    if board.add(f"{_OUTLIVES}/{name}") == size:
        board.swap(_OUTLIVES, None, b"%d" % size)


def forbid_going_on(board: Board) -> None:
    """Something in this run needs every worker: a death is everyone's end, whatever else was said."""
    board.set(_OUTLIVES, b"0")


def wait_for_all_to_say(board: Board, rank: int, size: int, timeout: float) -> None:
    """Return when it is known whether deaths leave the others going: all `size` workers allow it, or one forbids it.

    A worker that went on earlier could step, where nobody waits for anybody, and die, before the slowest is here.
    Raises `WireTimeout`, which names those that have said nothing.
    """
    try:
        board.wait([_OUTLIVES], timeout)
    except WireTimeout:
        late = [other for other in range(size) if not is_in_training(board, other)]
        waited = f"rank {rank} waited {timeout:g} s for {ranks_in_words(late)} in quorate.distribute"
        raise WireTimeout(waited, late) from None


def allow_going_on_after_errors(board: Board, *, wanted: bool) -> None:
    """Called by each worker for each training: where all want it, a worker's own error is a death like any other."""
    if wanted:
        board.swap(_OUTLIVES_ERRORS, None, b"1")
    else:
        board.set(_OUTLIVES_ERRORS, b"0")


def note_training(board: Board, rank: int, *, is_under_way: bool) -> None:
    """`rank` begins a training with the others, or has ended all that it had begun."""
    board.set(f"{_TRAINING}/{rank}", b"1" if is_under_way else b"0")


def note_server(board: Board, rank: int, *, is_outlived: bool = False) -> None:
    """`rank` is no worker, but keeps parameters for them; `is_outlived` where others keep the same."""
    board.set(f"{_SERVER}/{rank}", b"0" if is_outlived else b"1")


def is_server(board: Board, rank: int) -> bool:
    """Whether it is."""
    return board.get(f"{_SERVER}/{rank}") is not None


def is_in_training(board: Board, rank: int) -> bool:
    """Whether `rank` has begun a training and not ended it."""
    return board.get(f"{_TRAINING}/{rank}") == b"1"


def is_survived(board: Board, rank: int) -> bool:
    """Whether the others go on where `rank` is found dead; false for the last one, and for a server that alone keeps
    parameters."""
    written, known = board.get(_OUTLIVES), board.get(GONE)
    if written is None or int(written) == 0 or board.get(f"{_SERVER}/{rank}") == b"1":
        return False
    return bool({*range(int(written)), *joined_in(known)} - {rank, *(one.rank for one in gone_in(known))})


def stops_at_deaths(board: Board) -> bool | None:
    """Whether any death ends the run; None while not all workers of several have said."""
    written = board.get(_OUTLIVES)
    return None if written is None else int(written) == 0


def read_deaths(board: Board) -> list[Gone]:
    """Those that were outlived so far."""
    return gone_in(board.peek(GONE))


def gone_in(written: bytes | None) -> list[Gone]:
    """What the value of the key `gone` says."""
    found = [one for one in _events(written) if "rank" in one]
    return [Gone(int(one["rank"]), str(one["host"]), str(one["reason"])) for one in found]


def joined_in(written: bytes | None) -> list[int]:
    """Who has joined, as the value of the key `gone` says."""
    return [int(one["came"]) for one in _events(written) if "came" in one]


def _events(written: bytes | None) -> list[dict[str, Any]]:
    return [] if written is None else json.loads(written)


def has_come(board: Board, size: int, rank: int) -> bool:
    """Whether `rank` is one of those that train, or was there at the start (one of `size`, or a server)."""
    return rank < size or is_server(board, rank) or rank in joined_in(board.get(GONE))


def report_outsider(board: Board, rank: int, reason: str, host: str | None = None) -> None:
    """`rank` has ended before it had joined: nobody's end but its own. Those that had let it in go on without it."""
    if is_survived(board, rank):
        report_death(board, rank, reason, host)


def report_coming(board: Board, rank: int) -> None:
    """`rank` is one of those that train from now on."""
    while rank not in joined_in(written := board.get(GONE)):
        if board.swap(GONE, written, json.dumps([*_events(written), {"came": rank}]).encode()):
            return


def report_death(board: Board, rank: int, reason: str, host: str | None = None) -> bool:
    """`rank` is dead: written under `gone` where the others outlive it (True), else as the failure of the run."""
    place = socket.gethostname() if host is None else host
    while is_survived(board, rank):
        written = board.get(GONE)
        known = gone_in(written)
        if any(one.rank == rank for one in known):
            return True
        now = [*_events(written), vars(Gone(rank, place, reason))]
        if board.swap(GONE, written, json.dumps(now).encode()):
            return True
    report_failure(board, rank, reason, place)
    return False


def report_outlived_error(board: Board, rank: int, reason: str, host: str | None = None) -> bool:
    """As `report_death`, of a worker that ended by an error of its own; False, and nothing written, where all stop."""
    if board.get(_OUTLIVES_ERRORS) != b"1" or not is_survived(board, rank):
        return False
    board.set(f"{_ERRED}/{rank}", b"1")
    return report_death(board, rank, reason, host)


def pass_on(source: Board, target: Board) -> None:
    """Tell those at `target` what those at `source` know of failures and deaths. Cost: some reads of each."""
    for key in (FAILED, _AT, _OUTLIVES):
        written = source.peek(key)
        if written is not None and target.peek(key) is None:
            target.swap(key, None, written)
    if source.peek(_OUTLIVES) == b"0":
        forbid_going_on(target)
    known = {one.rank for one in read_deaths(target)}
    for one in read_deaths(source):
        if one.rank not in known:
            report_death(target, one.rank, one.reason, one.host)


def say_of(rank: int, source: Board, target: Board) -> None:
    """Write at `target` what stands at `source` of `rank` alone: whether it trains, and has erred."""
    for key in (f"{_TRAINING}/{rank}", f"{_ERRED}/{rank}"):
        written = source.peek(key)
        if written is not None and target.get(key) != written:
            target.set(key, written)


def has_erred(board: Board, rank: int) -> bool:
    """Whether `rank`, which was outlived, ended by an error of its own."""
    return board.get(f"{_ERRED}/{rank}") is not None
