"""Lists of files: found by every worker, checked by one each, and the same on all."""

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
from quorate.data.files.kinds import KINDS, Kind
from quorate.wire.current import Place, here
from quorate.wire.survivors import DeathTolerance


@dataclass(frozen=True)
class Listing:
    """Files below a folder."""

    folder: Path
    names: tuple[str, ...]
    """Below it, in order; the same on every host, wherever its folder is."""
    kind: str


@dataclass(frozen=True)
class Together:
    """The workers that look at files at the same place: all, or this one alone."""

    rank: int
    gather: Callable[[Any], Mapping[int, Any]]
    """Returns everyone's plain JSON value, by rank."""
    place: Place | None = None
    """The place of a worker that is not alone."""


def alone(rank: int = 0) -> Together:
    """Return a single worker, as before `quorate.join()`, or where it joins a running training."""
    return Together(rank, lambda said: {rank: said})


def together() -> Together:
    """Return all workers that have joined."""
    try:
        place = here()
    except ConfigurationError:
        return alone()
    wire, left = place.wire, place.context(DeathTolerance).survivors
    if wire.is_newcomer or wire.size == 1:
        return alone(wire.rank)

    def gather(said: Any) -> Mapping[int, Any]:
        carried = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
        if left is None:
            texts = dict(enumerate(wire.all_gather(carried).wait()))
        else:
            texts = {
                rank: message.tensors[0] for rank, message in left.gather(Message((carried,)), "files").wait().items()
            }
        return {rank: json.loads(bytes(x.tolist())) for rank, x in texts.items()}

    return Together(wire.rank, gather, place)


def find(where: str | os.PathLike[str] | Sequence[str], kind: str | None) -> Listing:
    """Return the files that `where` names: one, all in a folder and below it, or those that match a pattern. Raises
    `ConfigurationError` where there is none, and where the kind is unknown or unclear."""
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
    return Listing(folder, tuple(path.relative_to(folder).as_posix() for path in fit), kind or _kind_of(fit))


def _at(where: Path) -> tuple[Path, list[Path]]:
    if where.is_dir():
        return where, [path for path in where.rglob("*") if path.is_file()]
    if where.exists() or not glob.has_magic(str(where)):
        return where.parent, [where]
    folder = Path(*_until_magic(where.parts))
    return folder, [path for path in map(Path, glob.glob(str(where), recursive=True)) if path.is_file()]


def _until_magic(parts: Iterable[str]) -> list[str]:
    fixed = []
    for part in parts:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return fixed


def _kind_of(paths: Sequence[Path]) -> str:
    kinds = {name for path in paths for name, kind in KINDS.items() if path.suffix.lower() in kind.suffixes}
    if len(kinds) > 1:
        raise ConfigurationError(f"there are files of several kinds: give kind=, one of {', '.join(sorted(kinds))}")
    return kinds.pop()


def agree(listing: Listing, all_of: Together, *, skips: bool) -> Listing:
    """Return the same files on every worker: those that all have, if it `skips`. Otherwise raises `ConfigurationError`
    for a file that some do not have."""
    digest = hashlib.sha256("\n".join(listing.names).encode()).hexdigest()
    if len(set(all_of.gather(digest).values())) == 1:
        return listing
    names_by_rank = {rank: set(names) for rank, names in all_of.gather(list(listing.names)).items()}
    shared = set.intersection(*names_by_rank.values())
    missing = sorted(set.union(*names_by_rank.values()) - shared)
    ranks = [rank for rank, names in names_by_rank.items() if missing[0] not in names]
    more = f", and {len(missing) - 1} more" if missing[1:] else ""
    sentence = f"the file {missing[0]} is missing on {ranks_in_words(ranks)}{more}"
    if not skips or not shared:
        raise ConfigurationError(
            f'{sentence}; every worker must have the same files, unless on_bad_file="skip" skips the others'
        )
    if all_of.rank == min(names_by_rank):
        tell(f"quorate: {sentence}; left out\n")
    return Listing(listing.folder, tuple(sorted(shared)), listing.kind)


def count(listing: Listing, kind: Kind, all_of: Together, *, skips: bool) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the files that can be read, and their numbers of examples. Each file is checked by one worker. A damaged
    one is left out on all if it `skips`; otherwise raises `ConfigurationError`."""
    own = sorted(all_of.gather(None))
    own_names = listing.names[own.index(all_of.rank) :: len(own)]
    counts_by_rank = all_of.gather({name: _counted(kind, listing.folder / name) for name in own_names})
    by_rank = {name: rank for rank, some in counts_by_rank.items() for name in some}
    counts = {name: said for some in counts_by_rank.values() for name, said in some.items()}
    bad = [name for name in listing.names if isinstance(counts[name], str)]
    for name in bad:
        sentence = f"rank {by_rank[name]} cannot read {listing.folder / name}: {counts[name]}"
        if not skips or len(bad) == len(listing.names):
            raise ConfigurationError(f'{sentence}; repair it, or skip such files with on_bad_file="skip"')
        if all_of.rank == min(counts_by_rank):
            tell(f"quorate: {sentence}; left out\n")
    names = tuple(name for name in listing.names if not isinstance(counts[name], str))
    return names, tuple(counts[name] for name in names)


def _counted(kind: Kind, path: Path) -> int | str:
    try:
        return kind.count(path)
    except MissingExtra:
        raise
    except Exception as error:  # readers raise what they like for a file that is damaged
        return f"{type(error).__name__}: {error}"
