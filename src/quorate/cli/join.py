"""`quorate join`: one more worker for a run that is under way."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console

from quorate.cli.resume import folder_of
from quorate.core.contracts import Board
from quorate.core.errors import ConfigurationError, PeerFailed, QuorateError, WireTimeout
from quorate.core.quantities import seconds_from
from quorate.launch.local.newcomers import ask_for_one, board_of, has_ended
from quorate.launch.local.verdict import log_of
from quorate.wire.members import GONE, members_in

_LOOK_EVERY = 0.1
_ANSWER_SECONDS = 10.0


def join(
    run: Annotated[str, typer.Argument(help="The folder of a run, or its name in runs/.", metavar="RUN")],
    workers: Annotated[
        int, typer.Option("-n", "--workers", help="How many more workers.", min=1, max=64, metavar="N")
    ] = 1,
    timeout: Annotated[
        str, typer.Option(help="How long to wait until they have joined, such as 5min.", metavar="TIME")
    ] = "120s",
) -> int:
    """Let more workers join a run that is running.

    The run must have been started with `quorate run --max-joins N`; its launcher starts the new workers. The command
    returns when they train.
    """
    longest = seconds_from(timeout, f"--timeout {timeout}")
    if longest < 1:
        raise ConfigurationError(f"--timeout {timeout}: the time must be at least 1s")
    folder = folder_of(run, "join")
    board = board_of(folder)
    begin = time.monotonic()
    try:
        ranks, refused = _asked(board, workers)
        for rank in ranks:
            with Console(stderr=True, highlight=False).status(f"rank {rank} is on its way"):
                why = _wait(board, rank, begin + longest)
            if why is not None:
                raise QuorateError(f"rank {rank} {why}; its log is {log_of(folder, rank)}")
            typer.echo(f"rank {rank} has joined {folder} after {time.monotonic() - begin:.1f} s")
    except (PeerFailed, WireTimeout):
        raise QuorateError(f"the run in {folder} has ended or is about to end") from None
    if refused is not None:
        raise ConfigurationError(refused)
    return 0


def _asked(board: Board, workers: int) -> tuple[list[int], str | None]:
    """Return the ranks of the started workers, and why no more are started."""
    ranks: list[int] = []
    while len(ranks) < workers:
        said = ask_for_one(board, _ANSWER_SECONDS)
        if not said.startswith("rank "):
            return ranks, said
        ranks.append(int(said.removeprefix("rank ")))
    return ranks, None


def _wait(board: Board, rank: int, until: float) -> str | None:
    """Wait until `rank` trains; return None, or why it does not."""
    while True:
        members = members_in(board.get(GONE), 0)
        if rank in members.joined:
            return None
        if has_ended(board, rank):
            return "has ended before it could join"
        if rank in members.dead:
            return "has died"
        if time.monotonic() > until:
            return "has not joined yet; it goes on trying"
        time.sleep(_LOOK_EVERY)
