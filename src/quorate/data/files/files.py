"""`quorate.files`: the requested files, and the workers that read them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from quorate.core.arguments import one_sentence
from quorate.core.errors import ConfigurationError, unknown
from quorate.data.context import DataContext
from quorate.data.files.dataset import Cache, Files, OwnFiles, Reader, RemoteFiles
from quorate.data.files.kinds import KINDS, Kind
from quorate.data.files.listing import Listing, Together, agree, alone, count, find, together

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
    """Return the examples of many files as one dataset for `loader`, in order of the files' names.

    Args:
        where: A file, a folder (all files in and below it), a pattern ("train/*.tar", with "**" at any depth), or a
            list of files. Files must not change while they are used.
        kind: The kind of the files; None: by their suffix.

            - "images": folders of .jpg, .jpeg, .png, .bmp or .webp, one for each class; (image, class), the image uint8
              of shape (3, height, width). Needs Pillow: `pip install Pillow`.
            - "npy": arrays; a row. Mapped into memory, not read as a whole.
            - "tokens": .bin, plain numbers (`dtype`, by default "uint16"); a window of `length` + 1 tokens, int64. The
              last of them is the first of the next window.
            - "safetensors": tensors with equally many rows; a dict of one row of each.
            - "tar": uncompressed archives as in WebDataset. An example is a dict of the members of one name by their
              suffix, and the name under "__key__". Members with known suffixes (images, .cls, .txt, .json, .npy) are
              decoded, others are bytes.
            - "parquet": a row, a dict by column (`columns`: only these). Needs pyarrow: `pip install pyarrow`.
        on_bad_file: "stop" raises an error for a file that is missing on some workers, or damaged, with the rank that
            noticed it. "skip" leaves it out on all workers, and replaces a damaged example by the next readable one.
        cache: A folder of this host, into which each file is copied at first use, once for all workers of the host.
        transform: A function that is applied to each example.
        read: "each": all workers call this function at the same place, after `quorate.join()`; they compare their lists
            of files, and each checks some of them. (Called before, each checks all.) "one": files need to be on one
            host only. The worker of the lowest rank that finds any reads them; the others receive their examples from
            it, one batch ahead, with `num_workers=0`. Cost: every example over the wire. "own": every worker has files
            of its own, whatever their names; `loader` gives each its own examples, and all have equally many batches.
        options: The options of the kind.

    Returns:
        A dataset with a length and an index.

    Raises:
        ConfigurationError: There are no files, some are missing or damaged, or an option is unknown.
        MissingExtra: The package that reads the kind is not installed.
        BadFile: While an example is read.

    Cost: one check of each file by one worker (of archives: of each member), three exchanges of some bytes a file.

    Example:
        >>> numpy.save(folder / "part.npy", numpy.zeros((6, 4), dtype=numpy.float32))
        >>> len(quorate.files(folder, "npy"))
        6
    """
    for name, value, choices in (("on_bad_file", on_bad_file, _ON_BAD_FILE), ("read", read, _READ)):
        if value not in choices:
            raise unknown(name, str(value), choices)
    if transform is not None and not callable(transform):
        raise ConfigurationError(f"transform must be a function of one example, not a {type(transform).__name__}")
    near = None if cache is None else Cache(Path(cache))
    wanted = _Wanted(where, kind, options, on_bad_file == "skip", near, transform)
    ways = {"each": wanted.read_by_each, "one": wanted.read_by_one, "own": wanted.own_of_each}
    return ways[read](together())


@dataclass(frozen=True)
class _Wanted:
    """The arguments of `files`."""

    where: str | os.PathLike[str] | Sequence[str]
    kind: str | None
    options: dict[str, Any]
    skips: bool
    cache: Cache | None
    transform: Callable[[Any], Any] | None

    def read_by_each(self, all_of: Together) -> Files:
        """Let every worker read the same files."""
        listing = agree(find(self.where, self.kind), all_of, skips=self.skips)
        return self._made(listing, listing.names, all_of, all_of.rank)

    def own_of_each(self, all_of: Together) -> OwnFiles:
        """Let every worker read its own files."""
        listing, said = self._tried(all_of)
        for rank, (error, _) in said.items():
            if error:
                raise ConfigurationError(f"rank {rank}: {error}")
        assert listing is not None
        own_files, error = self._made_or_why(
            listing, [name for _, names in said.values() for name in names], all_of.rank
        )
        lengths = all_of.gather([0 if own_files is None else len(own_files), error])
        for _, error in lengths.values():
            if error:
                raise ConfigurationError(error)
        assert own_files is not None
        counts = [length for length, _ in lengths.values()]
        return OwnFiles(own_files.__getitem__, sorted(lengths).index(all_of.rank), counts)

    def read_by_one(self, all_of: Together) -> Files | RemoteFiles:
        """Let the worker of the lowest rank that finds files read them for all."""
        listing, said = self._tried(all_of)
        able = [rank for rank, (error, _) in said.items() if not error]
        if not able:
            raise ConfigurationError(said[all_of.rank][0])
        reader, own_files, error = min(able), None, ""
        if reader == all_of.rank:
            assert listing is not None
            own_files, error = self._made_or_why(listing, listing.names, reader)
        length, error = all_of.gather([0 if own_files is None else len(own_files), error])[reader]
        if error:
            raise ConfigurationError(error)
        if all_of.place is None:
            assert own_files is not None
            return own_files
        context = all_of.place.context(DataContext)
        context.files += 1
        wire = all_of.place.wire.channel(f"files/{context.files}")
        if own_files is None:
            return RemoteFiles(wire, reader, length, self.transform)
        all_of.place.leaving.append(Reader(wire, own_files.read).close)
        return own_files

    def _tried(self, all_of: Together) -> tuple[Listing | None, dict[int, tuple[str, list[str]]]]:
        """Return the files that this worker finds; and by rank, an error or their names."""
        listing, error = None, ""
        try:
            listing = find(self.where, self.kind)
        except ConfigurationError as caught:
            error = str(caught)
        answers = all_of.gather([error, [] if listing is None else list(listing.names)])
        return listing, {rank: (each[0], each[1]) for rank, each in answers.items()}

    def _made_or_why(self, listing: Listing, names: Sequence[str], rank: int) -> tuple[Files | None, str]:
        try:
            return self._made(listing, names, alone(rank), rank), ""
        except ConfigurationError as caught:
            return None, str(caught)

    def _made(self, listing: Listing, names: Sequence[str], all_of: Together, rank: int) -> Files:
        """Return the dataset; `names` are those of all files on all workers."""
        kind = self._kind(listing.kind).prepared(names)
        left, counts = count(listing, kind, all_of, skips=self.skips)
        if not sum(counts):
            raise ConfigurationError(f"the files at {self.where} hold no examples")
        kept, choices = Listing(listing.folder, left, listing.kind), dict[str, Any](skips=self.skips, cache=self.cache)
        return Files(kept, kind, counts, rank=rank, transform=self.transform, **choices)

    def _kind(self, name: str) -> Kind:
        """Return the kind. Raises `ConfigurationError` for options that files of this kind do not have."""
        options = {field.name for field in fields(KINDS[name])}  # type: ignore[arg-type]  # every kind is a dataclass
        for option in self.options:
            if option not in options:
                allowed = f"they have {', '.join(sorted(options))}" if options else "they have none"
                raise ConfigurationError(f"files of kind {name!r} have no option {option!r}; {allowed}")
        return KINDS[name](**self.options)
