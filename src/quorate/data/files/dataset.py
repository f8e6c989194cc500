"""The examples of many files as one dataset."""

from __future__ import annotations

import bisect
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from torch.utils.data import Dataset

from quorate.core.errors import BadFile, MissingExtra
from quorate.core.telling import tell
from quorate.data.files.cached import Cache
from quorate.data.files.kinds import Kind, Opened
from quorate.data.files.listing import Listing

OPEN = 16
"""Files that one process keeps open."""


class Files(Dataset[Any]):
    """Examples of files, one file after the other in order of their names. Made by `files`; may be pickled."""

    def __init__(
        self,
        listing: Listing,
        kind: Kind,
        counts: Sequence[int],
        *,
        rank: int,
        skips: bool,
        cache: Cache | None,
        transform: Callable[[Any], Any] | None,
    ) -> None:
        self.folder, self.names, self.kind = listing.folder, listing.names, kind
        self.counts = tuple(counts)
        self._ends = list(itertools.accumulate(counts))
        self._rank, self._skips, self._cache, self._transform = rank, skips, cache, transform
        self._open: OrderedDict[int, Opened] = OrderedDict()
        self._bad: set[int] = set()
        self._lock = Lock()
        """Guards open files, which another thread may read for other workers."""

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, number: int) -> Any:
        if not -len(self) <= number < len(self):
            raise IndexError(f"there is no example {number} of {len(self)}")
        example = self.read(number % len(self))
        return example if self._transform is None else self._transform(example)

    def read(self, number: int) -> Any:
        """Return example `number` as it is in its file; or, with `skips`, the next readable one."""
        for tried in range(len(self)):
            place = (number + tried) % len(self)
            file = bisect.bisect_right(self._ends, place)
            try:
                with self._lock:
                    return self._opened(file)[place - (self._ends[file - 1] if file else 0)]
            except MissingExtra:
                raise
            except Exception as error:  # readers raise what they like for a damaged file
                sentence = f"rank {self._rank} cannot read {self.folder / self.names[file]}: {error}"
                if not self._skips:
                    raise BadFile(
                        f'{sentence}; repair it, or skip such examples with on_bad_file="skip"', (self._rank,)
                    ) from error
                if file not in self._bad:
                    self._bad.add(file)
                    tell(f"quorate: {sentence}; using the next example\n")
        raise BadFile(f"rank {self._rank} cannot read any of the files in {self.folder}", (self._rank,))

    def _opened(self, file: int) -> Opened:
        if file not in self._open:
            path = self.folder / self.names[file]
            self._open[file] = self.kind.open(path if self._cache is None else self._cache.near(path), self.names[file])
            if len(self._open) > OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(file)
        return self._open[file]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_open", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= {**state, "_open": OrderedDict(), "_lock": Lock()}
