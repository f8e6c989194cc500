"""Notes on the board about workers that have ended.

`failed` holds the `FailureReport` of the first failure of the run, written by any worker, and `failed at` the
`FailedRound` of the first worker that left because of it. `ended/<rank>` holds the exit status of a worker that ended
normally (its launcher writes it), in decimal. `outlives` holds the number of workers once all allow the others to go on
after a death (0: something needs all workers); deaths are then written as in `members`. `outlives errors` is 1 where a
worker's own error counts as its death, and `erred/<rank>` marks workers that ended so. `training/<rank>` is 1 from the
beginning of that worker's first training to the end of its last. `server/<rank>` marks ranks that keep parameters for
the workers: 1 where the run ends with them, 0 where others keep the same.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quorate.core.contracts import Board
from quorate.core.errors import Diverged, Failure, Mismatch, NotFinite, PeerFailed, WireTimeout, ranks_in_words
from quorate.core.fields import Fields
from quorate.wire import members
from quorate.wire.naming import coordinates_in_words

_OUTLIVES = "outlives"
_OUTLIVES_ERRORS = "outlives errors"
_ERRED = "erred"
_TRAINING = "training"
_SERVER = "server"
Kind = Literal["died", "mismatch", "diverged", "not finite"]
FAILED = "failed"
_AT = "failed at"


@dataclass(frozen=True, slots=True)
class FailureReport(Fields):
    """The first failure of the run."""

    rank: int
    host: str
    reason: str
    coordinates: str = ""  # where the model is in shards: `replica 1, shard 0`
    kind: Kind = "died"
    ranks: Sequence[int] = ()  # those to blame, of the kinds that concern several workers


@dataclass(frozen=True, slots=True)
class FailedRound(Fields):
    """The round in which the training failed."""

    strategy: str
    round: int


def ended(rank: int) -> str:
    """Return the key under which the launcher writes that `rank` ended normally."""
    return f"ended/{rank}"


def report_failure(
    board: Board, rank: int, reason: str, host: str | None = None, kind: Kind = "died", ranks: Sequence[int] = ()
) -> bool:
    """Write that `rank` failed; return whether it was the first failure of the run, which is kept.

    `reason` continues "rank 2 (host h)": `was killed by signal 9 (SIGKILL)`, `raised ValueError: ...`. For the other
    kinds, which concern several workers, it is the full sentence, and `ranks` are those to blame.
    """
    if kind == "died" and is_server(board, rank):
        reason = f"was a server, and {reason}"
    where = socket.gethostname() if host is None else host
    report = FailureReport(rank, where, reason, coordinates_in_words(board, rank), kind, list(ranks))
    return board.swap(FAILED, None, report.to_bytes())


def read_failure(board: Board) -> Failure | None:
    """Return the first failure of the run as the error to raise; None while there is none. Never waits."""
    written = board.peek(FAILED)
    return None if written is None else failure_in(written)


def failure_in(written: bytes) -> Failure:
    """Return the error in the value of the key `failed`."""
    try:
        report = FailureReport.from_bytes(written)
        rank, reason, ranks = int(report.rank), str(report.reason), tuple(map(int, report.ranks))
    except (ValueError, TypeError):
        return PeerFailed("a worker failed; what it left on the board cannot be read")
    if report.kind == "mismatch":
        return Mismatch(reason)
    if report.kind == "diverged":
        return Diverged(reason, ranks)
    if report.kind == "not finite":
        return NotFinite(reason, ranks)
    where = f"{report.coordinates}; host {report.host}" if report.coordinates else f"host {report.host}"
    return PeerFailed(f"rank {rank} ({where}) {reason}", (rank,))


def host_of(board: Board, rank: int) -> str:
    """Return the host that `rank` wrote when it joined; "virtual" in a world without hosts."""
    written = board.get(f"generation/0/host/{rank}")
    return "virtual" if written is None else written.decode()


def has_joined(board: Board, rank: int) -> bool:
    """Whether `rank` has called `quorate.join()`."""
    return board.get(f"generation/0/host/{rank}") is not None


def note_place(board: Board, strategy: str, number: int) -> None:
    """Write that the training failed in round `number` of `strategy`. The first note is kept."""
    board.swap(_AT, None, FailedRound(strategy, number).to_bytes())


def noted_place(board: Board) -> str:
    """Return the round of the failure to end a sentence, ` in round 17 of quorum`; "" where it is not noted."""
    written = board.get(_AT)
    if written is None:
        return ""
    try:
        note = FailedRound.from_bytes(written)
        return f" in round {int(note.round)} of {note.strategy}"
    except (ValueError, TypeError):
        return ""


def allow_going_on(board: Board, size: int, *, name: str) -> None:
    """Allow the others to go on after a death in the training `name`, once each of `size` workers has called it."""
    if board.add(f"{_OUTLIVES}/{name}") == size:
        board.swap(_OUTLIVES, None, b"%d" % size)


def forbid_going_on(board: Board) -> None:
    """Let every death end the run, as something needs all workers; it overrides `allow_going_on`."""
    board.set(_OUTLIVES, b"0")


def wait_for_all_to_say(board: Board, rank: int, size: int, timeout: float) -> None:
    """Wait until all `size` workers have allowed the others to go on after a death, or one has forbidden it.

    A worker that did not wait could step, where workers do not wait for each other, and die before the slowest starts.
    Raises `WireTimeout`, which names the workers that have done neither.
    """
    try:
        board.wait([_OUTLIVES], timeout)
    except WireTimeout:
        late = [other for other in range(size) if not is_in_training(board, other)]
        waited = f"rank {rank} waited {timeout:g} s for {ranks_in_words(late)} in quorate.distribute"
        raise WireTimeout(waited, late) from None


def allow_going_on_after_errors(board: Board, *, wanted: bool) -> None:
    """Count a worker's own error as a death, if all workers want it; each calls it for each training."""
    if wanted:
        board.swap(_OUTLIVES_ERRORS, None, b"1")
    else:
        board.set(_OUTLIVES_ERRORS, b"0")


def note_training(board: Board, rank: int, *, is_under_way: bool) -> None:
    """Note that `rank` begins a training with the others, or has ended all its trainings."""
    board.set(f"{_TRAINING}/{rank}", b"1" if is_under_way else b"0")


def note_server(board: Board, rank: int, *, is_outlived: bool = False) -> None:
    """Note that `rank` keeps parameters for the workers; `is_outlived` where others keep the same."""
    board.set(f"{_SERVER}/{rank}", b"0" if is_outlived else b"1")


def is_server(board: Board, rank: int) -> bool:
    """Whether `rank` keeps parameters for the workers."""
    return board.get(f"{_SERVER}/{rank}") is not None


def is_in_training(board: Board, rank: int) -> bool:
    """Whether `rank` has begun a training and not ended it."""
    return board.get(f"{_TRAINING}/{rank}") == b"1"


def is_survived(board: Board, rank: int) -> bool:
    """Whether the others go on after the death of `rank`; false for the last worker, and for a server whose parameters
    no other keeps."""
    written, history = board.get(_OUTLIVES), board.get(members.GONE)
    if written is None or int(written) == 0 or board.get(f"{_SERVER}/{rank}") == b"1":
        return False
    return any(other != rank for other in members.members_in(history, int(written)).alive)


def stops_at_deaths(board: Board) -> bool | None:
    """Whether any death ends the run; None while it is undecided."""
    written = board.get(_OUTLIVES)
    return None if written is None else int(written) == 0


def has_come(board: Board, size: int, rank: int) -> bool:
    """Whether `rank` takes part in the run: from the start (one of `size`, or a server), or since it joined."""
    return rank < size or is_server(board, rank) or rank in members.members_in(board.get(members.GONE), size).joined


def report_outsider(board: Board, rank: int, reason: str, host: str | None = None) -> None:
    """Note that `rank` ended before it had joined: the others go on without it."""
    if is_survived(board, rank):
        report_death(board, rank, reason, host)


def report_coming(board: Board, rank: int) -> None:
    """Note that `rank` has joined the training."""
    coming = members.Coming(rank)
    while coming not in (history := members.history_in(written := board.get(members.GONE))):
        if board.swap(members.GONE, written, members.history_to_bytes([*history, coming])):
            return


def report_death(board: Board, rank: int, reason: str, host: str | None = None) -> bool:
    """Write the death of `rank` under `gone` where the others outlive it (True), else as the failure of the run."""
    place = socket.gethostname() if host is None else host
    while is_survived(board, rank):
        history = members.history_in(written := board.get(members.GONE))
        if any(isinstance(event, members.Death) and event.rank == rank for event in history):
            return True
        if board.swap(members.GONE, written, members.history_to_bytes([*history, members.Death(rank, place, reason)])):
            return True
    report_failure(board, rank, reason, place)
    return False


def report_outlived_error(board: Board, rank: int, reason: str, host: str | None = None) -> bool:
    """Report a worker that ended by its own error as a death; return False, and write nothing, where all stop."""
    if board.get(_OUTLIVES_ERRORS) != b"1" or not is_survived(board, rank):
        return False
    board.set(f"{_ERRED}/{rank}", b"1")
    return report_death(board, rank, reason, host)


def pass_on(source: Board, target: Board) -> None:
    """Copy failures and deaths from the board `source` to `target`. Cost: some reads of each."""
    for key in (FAILED, _AT, _OUTLIVES):
        written = source.peek(key)
        if written is not None and target.peek(key) is None:
            target.swap(key, None, written)
    if source.peek(_OUTLIVES) == b"0":
        forbid_going_on(target)
    dead = members.members_on(target, 0).dead
    for death in members.read_deaths(source):
        if death.rank not in dead:
            report_death(target, death.rank, death.reason, death.host)


def say_of(rank: int, source: Board, target: Board) -> None:
    """Copy the notes about `rank` alone from `source` to `target`: whether it trains, and has erred."""
    for key in (f"{_TRAINING}/{rank}", f"{_ERRED}/{rank}"):
        written = source.peek(key)
        if written is not None and target.get(key) != written:
            target.set(key, written)


def has_erred(board: Board, rank: int) -> bool:
    """Whether `rank`, which the others outlived, ended by its own error."""
    return board.get(f"{_ERRED}/{rank}") is not None
