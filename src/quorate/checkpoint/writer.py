"""Writing one worker's part of a checkpoint, beside its training; the last one to be there makes it complete.

Nobody waits for anybody: each worker writes its files, says so on the board, and counts; whoever counts up to the
number of workers writes the manifest and gives the folder its name; of those that have died nothing is waited for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quorate.checkpoint.folder import being_written, clean, clean_unfinished, commit, rank_file, versions
from quorate.checkpoint.parts import TensorFile
from quorate.checkpoint.tensor_file import FileOutput, Open
from quorate.core.contracts import Board
from quorate.core.errors import QuorateError
from quorate.wire.failure import read_deaths

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one worker is to write."""

    root: Path
    session: str
    number: int
    """Grows from one checkpoint of the session to the next."""
    term: int
    rank: int
    size: int
    files: list[TensorFile]
    shared: Mapping[str, Any] | None
    """What the manifest is to say, from the worker that writes what is equal everywhere."""
    refused: frozenset[str] = frozenset()
    opened: Open = field(default=FileOutput)

    @property
    def key(self) -> str:
        """The same on all workers, and another one for every checkpoint."""
        return f"{self.session}-{self.number}.{self.term}"


def claims(board: Board, key: str) -> bool:
    """Whether the worker that asks writes what is equal everywhere: true for the first one of those that ask."""
    return board.add(f"checkpoint/{key}/claims") == 1


def write(part: Part, board: Board, tell: Tell) -> None:
    """Write it. What goes wrong is told, and ends nothing: the checkpoint before stays the newest."""
    folder = being_written(part.root, part.key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = {file.name: file.write(folder, part.opened).as_json for file in part.files}
        place = f"checkpoint/{part.key}"
        said = {"files": written, "shared": part.shared}
        board.set(f"{place}/part/{part.rank}", json.dumps(said).encode())
        if board.add(f"{place}/count") == part.size or _only_the_dead_are_missing(part, board):
            _complete(part, board, folder)
    except FileNotFoundError:
        if folder.parent.exists():
            return  # a later checkpoint is complete already, and this one was removed
        tell(f"a checkpoint could not be written: the folder {part.root} is gone")
    except OSError as error:
        tell(f"a checkpoint could not be written, and the one before it stays the newest: {error}")
    except QuorateError:
        pass  # the run is ending, and with it the board


def _only_the_dead_are_missing(part: Part, board: Board) -> bool:
    """Whether all that live have written, and this one is to make it complete."""
    gone = {one.rank for one in read_deaths(board)}
    place = f"checkpoint/{part.key}"
    lives = [board.get(f"{place}/part/{rank}") is not None for rank in range(part.size) if rank not in gone]
    return bool(gone) and all(lives) and board.swap(f"{place}/completed by", None, b"%d" % part.rank)


def _complete(part: Part, board: Board, folder: Path) -> None:
    place = f"checkpoint/{part.key}"
    said = [json.loads(written) for rank in range(part.size) if (written := board.get(f"{place}/part/{rank}"))]
    about = next((one["shared"] for one in said if one["shared"] is not None), None)
    if about is None:
        return  # who was to write what is equal everywhere has died; the next checkpoint is made without it
    files = {name: file for one in said for name, file in sorted(one["files"].items())}
    manifest = {
        "step": about["step"],
        "workers": len(said),
        "ranks": [rank for rank in range(part.size) if rank_file(rank) in files],
        "written": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "versions": versions(),
        "optimizers": about["optimizers"],
        "round": about["round"],
        "files": files,
    }
    commit(folder, manifest, refused=part.refused, opened=part.opened)
    board.delete(f"{place}/")
    clean(part.root, refused=part.refused)
    clean_unfinished(part.root, session=part.session, up_to=part.number)
