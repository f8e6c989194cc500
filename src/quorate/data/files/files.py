"""`quorate.files`: which files are wanted, and who reads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from quorate.core.arguments import one_sentence
from quorate.core.errors import ConfigurationError, unknown
from quorate.data.context import data_context
from quorate.data.files.cached import Cache
from quorate.data.files.dataset import Files
from quorate.data.files.kinds import Kind
from quorate.data.files.listing import KINDS, Found, Together, agree, alone, count, find, together
from quorate.data.files.own import OwnFiles
from quorate.data.files.remote import Reader, RemoteFiles

_ON_BAD_FILE = ("skip", "stop")
_READ = ("each", "one", "own")


@one_sentence({})
def files(
    where: str | os.PathLike[str] | Sequence[str],
    kind: Literal["images", "npy", "parquet", "safetensors", "tar", "tokens"] | None = None,
    *,
    on_bad_file: Literal["skip", "stop"] = "stop",
    cache: str | os.PathLike[str] | None = None,
    transform: Callable[[Any], Any] | None = None,
    read: Literal["each", "one", "own"] = "each",
    **options: Any,
) -> Files | OwnFiles | RemoteFiles:
    """The examples of files as one dataset, for `shard`: in order of the files' names, with a length and an index.

    `where` is a file, a folder (all files in and below it), a pattern ("train/*.tar", with "**" at any depth), or a
    list of files. `kind` is told by their suffix unless given:

    - "images": folders of .jpg, .jpeg, .png, .bmp or .webp, one for each class; (image, class), the image uint8 of
      shape (3, height, width). Needs Pillow: `pip install Pillow`.
    - "npy": arrays; a row. Mapped into memory, not read as a whole.
    - "tokens": .bin, plain numbers (`dtype`, by default "uint16"); a window of `length` + 1 tokens, int64, of which
      the last is the first of the next window.
    - "safetensors": tensors with equally many rows; a dict of one row of each.
    - "tar": archives as of WebDataset, not compressed; a dict of the members of one name by their suffix, decoded where
      that is known (images, .cls, .txt, .json, .npy), else bytes; the name under "__key__".
    - "parquet": a row, a dict by column (`columns`: only these). Needs pyarrow: `pip install pyarrow`.

    All workers call it at the same place, after `quorate.join()`: they compare what files they have, and each looks at
    some of them. Called before, each looks at all. A file that is missing on some, or damaged, is named with the rank
    that found it; with `on_bad_file="skip"` it is left out on all (and an example that turns out to be damaged later is
    replaced by the next one that is not). Files are not to change while they are used.

    `cache` is a folder of this host, into which each file is copied when it is first needed, once for all workers of
    the host. `transform` is applied to each example.

    With `read="one"` files need to be on one host only: the worker of the lowest rank that finds any reads them, and
    the others get their examples from it, one batch ahead; `num_workers` is 0 then. Cost: every example over the wire.
    With `read="own"` every worker has files of its own, whatever their names: `shard` deals out to each its own
    examples, and all have equally many batches.

    Raises `ConfigurationError` for no files, files that are missing or damaged, and unknown options; `MissingExtra`;
    `BadFile` when an example is read. Cost: a look at each file in all (of archives: at each member), three exchanges
    of some bytes a file.
    """
    for name, value, known in (("on_bad_file", on_bad_file, _ON_BAD_FILE), ("read", read, _READ)):
        if value not in known:
            raise unknown(name, str(value), known)
    if transform is not None and not callable(transform):
        raise ConfigurationError(f"transform must be a function of one example, not a {type(transform).__name__}")
    near = None if cache is None else Cache(Path(cache))
    wanted = _Wanted(where, kind, options, on_bad_file == "skip", near, transform)
    ways = {"each": wanted.read_by_each, "one": wanted.read_by_one, "own": wanted.own_of_each}
    return ways[read](together())


@dataclass(frozen=True)
class _Wanted:
    """What `files` was asked for."""

    where: str | os.PathLike[str] | Sequence[str]
    kind: str | None
    options: dict[str, Any]
    skips: bool
    cache: Cache | None
    transform: Callable[[Any], Any] | None

    def read_by_each(self, all_of: Together) -> Files:
        """Every worker reads the same files."""
        found = agree(find(self.where, self.kind), all_of, skips=self.skips)
        return self._made(found, found.names, all_of, all_of.rank)

    def own_of_each(self, all_of: Together) -> OwnFiles:
        """Every worker has its own."""
        found, said = self._tried(all_of)
        for rank, (error, _) in said.items():
            if error:
                raise ConfigurationError(f"rank {rank}: {error}")
        assert found is not None
        mine, error = self._made_or_why(found, [name for _, names in said.values() for name in names], all_of.rank)
        told = all_of.gather([0 if mine is None else len(mine), error])
        for _, error in told.values():
            if error:
                raise ConfigurationError(error)
        assert mine is not None
        counts = [length for length, _ in told.values()]
        return OwnFiles(mine.__getitem__, sorted(told).index(all_of.rank), counts)

    def read_by_one(self, all_of: Together) -> Files | RemoteFiles:
        """The worker of the lowest rank that finds files reads them for all."""
        found, said = self._tried(all_of)
        able = [rank for rank, (error, _) in said.items() if not error]
        if not able:
            raise ConfigurationError(said[all_of.rank][0])
        reader, mine, error = min(able), None, ""
        if reader == all_of.rank:
            assert found is not None
            mine, error = self._made_or_why(found, found.names, reader)
        length, error = all_of.gather([0 if mine is None else len(mine), error])[reader]
        if error:
            raise ConfigurationError(error)
        if all_of.place is None:
            assert mine is not None
            return mine
        context = data_context(all_of.place)
        context.files += 1
        wire = all_of.place.wire.channel(f"files/{context.files}")
        if mine is None:
            return RemoteFiles(wire, reader, length, self.transform)
        all_of.place.leaving.append(Reader(wire, mine.read).close)
        return mine

    def _tried(self, all_of: Together) -> tuple[Found | None, dict[int, tuple[str, list[str]]]]:
        """The files that this worker finds; and by rank, why there are none, and their names."""
        found, error = None, ""
        try:
            found = find(self.where, self.kind)
        except ConfigurationError as caught:
            error = str(caught)
        told = all_of.gather([error, [] if found is None else list(found.names)])
        return found, {rank: (each[0], each[1]) for rank, each in told.items()}

    def _made_or_why(self, found: Found, names: Sequence[str], rank: int) -> tuple[Files | None, str]:
        """Those that one worker reads by itself; or why it cannot."""
        try:
            return self._made(found, names, alone(rank), rank), ""
        except ConfigurationError as caught:
            return None, str(caught)

    def _made(self, found: Found, names: Sequence[str], all_of: Together, rank: int) -> Files:
        """`names` are those of all files that there are."""
        kind = self._kind(found.kind).prepared(names)
        left, counts = count(found, kind, all_of, skips=self.skips)
        if not sum(counts):
            raise ConfigurationError(f"the files at {self.where} hold no examples")
        kept, choices = Found(found.folder, left, found.kind), dict[str, Any](skips=self.skips, cache=self.cache)
        return Files(kept, kind, counts, rank=rank, transform=self.transform, **choices)

    def _kind(self, name: str) -> Kind:
        """Raises `ConfigurationError` for options that files of this kind do not have."""
        known = {field.name for field in fields(KINDS[name])}  # type: ignore[arg-type]  # every kind is a dataclass
        for option in self.options:
            if option not in known:
                allowed = f"they have {', '.join(sorted(known))}" if known else "they have none"
                raise ConfigurationError(f"files of kind {name!r} have no option {option!r}; {allowed}")
        return KINDS[name](**self.options)
