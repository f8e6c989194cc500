"""Which files there are: found by every worker, looked at by one each, and the same on all."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quorate.core.contracts import Message
from quorate.core.errors import ConfigurationError, MissingExtra, ranks_in_words, unknown
from quorate.core.telling import tell
from quorate.data.files.archives import Tar
from quorate.data.files.arrays import Npy, Safetensors, Tokens
from quorate.data.files.kinds import Kind
from quorate.data.files.pictures import Images
from quorate.data.files.tables import Parquet
from quorate.wire.current import Place, here
from quorate.wire.survivors import survivors

KINDS: dict[str, type[Kind]] = {
    "images": Images,
    "npy": Npy,
    "parquet": Parquet,
    "safetensors": Safetensors,
    "tar": Tar,
    "tokens": Tokens,
}
"""By name."""


@dataclass(frozen=True)
class Found:
    """Files below a folder."""

    folder: Path
    names: tuple[str, ...]
    """Below it, in order; the same on every host, wherever its folder is."""
    kind: str


@dataclass(frozen=True)
class Together:
    """Those that look at files at the same place: all workers, or this one by itself."""

    rank: int
    gather: Callable[[Any], Mapping[int, Any]]
    """Everyone's plain JSON value, by rank."""
    place: Place | None = None
    """That of a worker that is not by itself."""


def alone(rank: int = 0) -> Together:
    """One by itself, as before `quorate.join()`, or where it joins a training under way."""
    return Together(rank, lambda said: {rank: said})


def together() -> Together:
    """All that have joined."""
    try:
        place = here()
    except ConfigurationError:
        return alone()
    wire, left = place.wire, survivors(place)
    if wire.is_newcomer or wire.size == 1:
        return alone(wire.rank)

    def gather(said: Any) -> Mapping[int, Any]:
        carried = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
        if left is None:
            found = dict(enumerate(wire.all_gather(carried).wait()))
        else:
            found = {rank: one.tensors[0] for rank, one in left.gather(Message((carried,)), "files").wait().items()}
        return {rank: json.loads(bytes(x.tolist())) for rank, x in found.items()}

    return Together(wire.rank, gather, place)


def find(where: str | os.PathLike[str] | Sequence[str], kind: str | None) -> Found:
    """The files that `where` names: one, all in a folder and below it, or what a pattern fits.

    Raises `ConfigurationError` where there is none, and where the kind is unknown or not to be seen.
    """
    if kind is not None and kind not in KINDS:
        raise unknown("kind of files", kind, KINDS)
    if isinstance(where, str | os.PathLike):
        folder, paths = _at(Path(where))
    else:
        paths = [Path(each) for each in where]
        folder = Path(os.path.commonpath([path.parent for path in paths])) if paths else Path()
    suffixes = KINDS[kind].suffixes if kind is not None else tuple(s for each in KINDS.values() for s in each.suffixes)
    is_named = not isinstance(where, str | os.PathLike) or paths == [Path(where)]
    fit = sorted(path for path in paths if path.suffix.lower() in suffixes or (is_named and kind is not None))
    if not fit:
        of = f"of kind {kind!r} ({', '.join(suffixes)})" if kind is not None else f"ending in {', '.join(suffixes)}"
        raise ConfigurationError(f"there is no file {of} at {where}")
    return Found(folder, tuple(path.relative_to(folder).as_posix() for path in fit), kind or _kind_of(fit))


def _at(where: Path) -> tuple[Path, list[Path]]:
    if where.is_dir():
        return where, [path for path in where.rglob("*") if path.is_file()]
    if where.exists() or not glob.has_magic(str(where)):
        return where.parent, [where]
    folder = Path(*_until_magic(where.parts))
    return folder, [path for path in map(Path, glob.glob(str(where), recursive=True)) if path.is_file()]


def _until_magic(parts: Iterable[str]) -> list[str]:
    found = []
    for part in parts:
        if glob.has_magic(part):
            break
        found.append(part)
    return found


def _kind_of(paths: Sequence[Path]) -> str:
    found = {name for path in paths for name, kind in KINDS.items() if path.suffix.lower() in kind.suffixes}
    if len(found) > 1:
        raise ConfigurationError(f"there are files of several kinds: give kind=, one of {', '.join(sorted(found))}")
    return found.pop()


def agree(found: Found, all_of: Together, *, skips: bool) -> Found:
    """The same files on every worker: those that all have, where it `skips`; else raises `ConfigurationError` for one
    that some do not have."""
    digest = hashlib.sha256("\n".join(found.names).encode()).hexdigest()
    if len(set(all_of.gather(digest).values())) == 1:
        return found
    told = {rank: set(names) for rank, names in all_of.gather(list(found.names)).items()}
    shared = set.intersection(*told.values())
    missing = sorted(set.union(*told.values()) - shared)
    ranks = [rank for rank, names in told.items() if missing[0] not in names]
    more = f", and {len(missing) - 1} more" if missing[1:] else ""
    sentence = f"the file {missing[0]} is missing on {ranks_in_words(ranks)}{more}"
    if not skips or not shared:
        raise ConfigurationError(
            f'{sentence}; every worker must have the same files, unless on_bad_file="skip" skips the others'
        )
    if all_of.rank == min(told):
        tell(f"quorate: {sentence}; left out\n")
    return Found(found.folder, tuple(sorted(shared)), found.kind)


def count(found: Found, kind: Kind, all_of: Together, *, skips: bool) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """How many examples are in which files. Each file is looked at by one worker.

    A damaged one is left out on all where it `skips`; else raises `ConfigurationError`.
    """
    own = sorted(all_of.gather(None))
    mine = found.names[own.index(all_of.rank) :: len(own)]
    told = all_of.gather({name: _counted(kind, found.folder / name) for name in mine})
    by_rank = {name: rank for rank, some in told.items() for name in some}
    counts = {name: said for some in told.values() for name, said in some.items()}
    bad = [name for name in found.names if isinstance(counts[name], str)]
    for name in bad:
        sentence = f"rank {by_rank[name]} cannot read {found.folder / name}: {counts[name]}"
        if not skips or len(bad) == len(found.names):
            raise ConfigurationError(f'{sentence}; repair it, or skip such files with on_bad_file="skip"')
        if all_of.rank == min(told):
            tell(f"quorate: {sentence}; left out\n")
    names = tuple(name for name in found.names if not isinstance(counts[name], str))
    return names, tuple(counts[name] for name in names)


def _counted(kind: Kind, path: Path) -> int | str:
    try:
        return kind.count(path)
    except MissingExtra:
        raise
    except Exception as error:  # readers raise what they like for a file that is damaged
        return f"{type(error).__name__}: {error}"
