"""The folder of one checkpoint: how workers write it, when it is complete, its name, and its integrity.

    checkpoints/
      step-00000200/      a checkpoint: only a complete one has such a name
        manifest.json     written last: a description, and SHA-256 and size of every other file
        model.safetensors, optimizer.safetensors, strategy.safetensors
                          of a model in shards model.shard-0-of-2.safetensors, …: some rows of each tensor
        rank-0.safetensors, rank-1.safetensors, …
      .writing-…/         one that is being written, or whose writing was interrupted

The manifest closes with the SHA-256 of its own text, so that a change in it is detected as well.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from quorate.checkpoint.schema import check_manifest
from quorate.checkpoint.tensor_file import FileOutput, Open, TensorFile, Written, hash_file, sync_folder, write_file
from quorate.core.contracts import Board
from quorate.core.errors import CheckpointError, QuorateError
from quorate.core.fields import Fields
from quorate.core.installed import version_of
from quorate.wire.members import members_on

FORMAT = 1
"""The version of the contents of such a folder."""
MANIFEST = "manifest.json"
KEPT = 2
"""How many of the newest checkpoints stay by default."""
_NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?")
_LARGEST_MANIFEST = 64 << 20
_WRITING = ".writing-"
_SEAL = "manifest_sha256"


def being_written(root: Path, key: str) -> Path:
    """Return the path of the checkpoint `key` until it is complete."""
    return root / f"{_WRITING}{key}"


def complete_ones(root: Path) -> list[Path]:
    """Return the complete checkpoints in `root`, the newest first."""
    try:
        named = [(match, path) for path in root.iterdir() if (match := _NAME.fullmatch(path.name)) and path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    named.sort(key=lambda entry: (int(entry[0][1]), int(entry[0][2] or 1)), reverse=True)
    return [path for _, path in named]


def commit(
    folder: Path, manifest: Mapping[str, Any], *, refused: frozenset[str] = frozenset(), opened: Open = FileOutput
) -> Path:
    """Complete the checkpoint in `folder`, all of whose files are written and synced; return its path.

    It never gets a name that was `refused`. Raises `OSError`; until this returns, no part of it has the name of a
    complete checkpoint.
    """
    text = json.dumps({"format": FORMAT, **manifest}, indent=1)
    seal = hashlib.sha256(text.encode()).hexdigest()
    write_file(folder / MANIFEST, [f'{text[:-2]},\n "{_SEAL}": "{seal}"\n}}\n'.encode()], opened)
    sync_folder(folder)
    final = _free_name(folder.parent, int(manifest["step"]), refused)
    folder.rename(final)
    sync_folder(folder.parent)
    return final


def _free_name(root: Path, step: int, refused: frozenset[str]) -> Path:
    plain = root / f"step-{step:08d}"
    path, count = plain, 1
    while os.path.lexists(path) or path.name in refused:
        count += 1
        path = root / f"{plain.name}-{count}"
    return path


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest. Raises `CheckpointError` for one that is missing, changed, or of a later version."""
    _check_file(folder / MANIFEST, most=_LARGEST_MANIFEST)
    try:
        text = (folder / MANIFEST).read_bytes().decode()
        said = json.loads(text)
        version = said["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{MANIFEST} cannot be read: {error!r}") from None
    if version != FORMAT and type(version) is int and version > FORMAT:
        raise CheckpointError(f"it has the format {version}, but this version of quorate reads formats up to {FORMAT}")
    body, _, seal = text.rpartition(f',\n "{_SEAL}": ')
    closed = body + "\n}"
    if version != FORMAT or seal != f'"{hashlib.sha256(closed.encode()).hexdigest()}"\n}}\n':
        raise CheckpointError(f"{MANIFEST} was changed: it does not match its own SHA-256")
    manifest = check_manifest(said, MANIFEST, rank_file, shard_file)
    named = _NAME.fullmatch(folder.name)
    if named and int(named[1]) != manifest["step"]:
        raise CheckpointError(f"{MANIFEST} is of step {manifest['step']}, but the name of the folder says another step")
    return manifest


def _check_file(path: Path, *, most: int | None = None) -> int:
    """Return the size of a regular file. Raises `CheckpointError` for other kinds, which may never end. So it does for
    one that is larger than `most`; no file is opened."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path.name} is not a regular file")
    if most is not None and status.st_size > most:
        raise CheckpointError(f"{path.name} has {status.st_size} bytes, and at most {most} can be")
    return status.st_size


def rank_file(rank: int) -> str:
    """Return the name of the file of worker `rank`."""
    return f"rank-{rank}.safetensors"


def shard_file(name: str, shards: int, shard: int) -> str:
    """Return the name of the file of one shard of `name`."""
    return name if shards == 1 else f"{name.removesuffix('.safetensors')}.shard-{shard}-of-{shards}.safetensors"


def verify(folder: Path) -> dict[str, Any]:
    """Return the manifest, after checking every file against it. Cost: reading and hashing everything. Raises
    `CheckpointError` that names the first file that is missing, cut off, changed, or exchanged for another."""
    manifest = read_manifest(folder)
    for name, about in manifest["files"].items():
        wanted = Written(about["sha256"], about["bytes"])
        size = _check_file(folder / name)
        try:
            written = hash_file(folder / name) if size == wanted.bytes else None
        except OSError as error:
            raise CheckpointError(f"{name} cannot be read: {error.strerror}") from None
        if written is None:
            raise CheckpointError(f"{name} has {size} bytes, but {wanted.bytes} were written")
        if written != wanted:
            raise CheckpointError(f"{name} is damaged: its SHA-256 differs from the one in the manifest")
    return manifest


def value_of(folder: Path) -> float | None:
    """Return the value that `quorate.save(best=...)` gave the checkpoint; None without one."""
    try:
        value: float | None = read_manifest(folder).get("best")
    except CheckpointError:
        return None
    return value


def best_first(root: Path) -> list[Path]:
    """Return the complete checkpoints with a value, the one of the largest first; of equal ones the newest."""
    values = {path: value for path in complete_ones(root) if (value := value_of(path)) is not None}
    return sorted(values, key=values.__getitem__, reverse=True)


def clean(root: Path, *, refused: frozenset[str] = frozenset(), keep: int = KEPT) -> None:
    """Remove `refused` checkpoints, and all complete ones but the newest `keep` and the best one; files that cannot be
    removed stay."""
    there = complete_ones(root)
    good = [path for path in there if path.name not in refused]
    best = [path for path in best_first(root) if path in good][:1] if len(good) > keep else []
    for path in there:
        if path not in (*good[:keep], *best):
            shutil.rmtree(path, ignore_errors=True)


def clean_unfinished(root: Path, *, session: str | None = None, up_to: int = 0) -> None:
    """Remove incomplete checkpoints: all, or those of `session` with numbers up to `up_to`."""
    try:
        names = [path.name.removeprefix(_WRITING) for path in root.iterdir() if path.name.startswith(_WRITING)]
    except FileNotFoundError:
        return
    for name in names:
        theirs, _, rest = name.partition("-")
        number = rest.partition(".")[0]
        if theirs != session or (number.isdecimal() and int(number) <= up_to):
            shutil.rmtree(being_written(root, name), ignore_errors=True)


@cache
def versions() -> dict[str, str | None]:
    """Return the versions of the libraries that wrote it."""
    return {package: version_of(package) for package in ("quorate", "torch", "numpy", "safetensors")}


Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One worker's part of a checkpoint, to be written."""

    root: Path
    session: str
    number: int
    """Grows from one checkpoint of the session to the next."""
    term: int
    rank: int
    size: int
    files: list[TensorFile]
    shared: Mapping[str, Any] | None
    """Entries of the manifest, from the worker that writes state that is equal everywhere."""
    refused: frozenset[str] = frozenset()
    keep: int | None = None
    """How many checkpoints stay, if this worker has said so."""
    best: float | None = None
    """The value of this state, if this worker has given one; the largest is the best."""
    opened: Open = field(default=FileOutput)

    @property
    def key(self) -> str:
        """A key that is the same on all workers, and different for every checkpoint."""
        return f"{self.session}-{self.number}.{self.term}"


@dataclass(frozen=True, slots=True)
class WrittenPart(Fields):
    """The report of a worker, on the board, that its part is written."""

    files: Mapping[str, Any]  # open: what the manifest says of each file, by name
    shared: Mapping[str, Any] | None  # open: see `Part.shared`
    keep: int | None = None
    best: float | None = None


def claims(board: Board, key: str) -> bool:
    """Return whether the calling worker writes state that is equal everywhere: True for the first that asks."""
    return board.add(f"checkpoint/{key}/claims") == 1


def write(part: Part, board: Board, tell: Tell) -> None:
    """Write one worker's part while it trains; the last worker completes the checkpoint.

    No worker waits for another: each writes its files, reports them on the board, and counts. The worker whose count is
    the number of workers writes the manifest and gives the folder its name. Dead workers are not waited for. Errors are
    reported, and end nothing: the checkpoint before stays the newest.
    """
    folder = being_written(part.root, part.key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = {file.name: file.write(folder, part.opened).as_json for file in part.files}
        place = f"checkpoint/{part.key}"
        board.set(f"{place}/part/{part.rank}", WrittenPart(written, part.shared, part.keep, part.best).to_bytes())
        if board.add(f"{place}/count") == part.size or _only_the_dead_are_missing(part, board):
            _complete(part, board, folder)
    except FileNotFoundError:
        if folder.parent.exists():
            return  # a later checkpoint is complete already, and this one was removed
        tell(f"a checkpoint could not be written: the folder {part.root} no longer exists")
    except OSError as error:
        tell(f"a checkpoint could not be written, and the previous one stays the newest: {error}")
    except QuorateError:
        pass  # the run is ending, and with it the board


def _only_the_dead_are_missing(part: Part, board: Board) -> bool:
    dead = members_on(board, part.size).dead
    place = f"checkpoint/{part.key}"
    lives = [board.get(f"{place}/part/{rank}") is not None for rank in range(part.size) if rank not in dead]
    return bool(dead) and all(lives) and board.swap(f"{place}/completed by", None, b"%d" % part.rank)


def _complete(part: Part, board: Board, folder: Path) -> None:
    place = f"checkpoint/{part.key}"
    values = [board.get(f"{place}/part/{rank}") for rank in range(part.size)]
    parts = [WrittenPart.from_bytes(value) for value in values if value]
    about = next((written.shared for written in parts if written.shared is not None), None)
    if about is None:
        return  # the writer of state that is equal everywhere has died; the next checkpoint is made without it
    files = {name: file for written in parts for name, file in sorted(written.files.items())}
    manifest = {
        "step": about["step"],
        "workers": len(parts),
        "ranks": [rank for rank in range(part.size) if rank_file(rank) in files],
        "written": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "versions": versions(),
        "optimizers": about["optimizers"],
        "round": about["round"],
        "files": files,
    }
    best = next((written.best for written in parts if written.best is not None), None)
    if best is not None:
        manifest["best"] = best
    commit(folder, manifest, refused=part.refused, opened=part.opened)
    board.delete(f"{place}/")
    keep = max((written.keep for written in parts if written.keep is not None), default=KEPT)
    clean(part.root, refused=part.refused, keep=keep)
    clean_unfinished(part.root, session=part.session, up_to=part.number)
