"""The interface of kinds of files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol


class Opened(Protocol):
    """A file whose examples can be read, in any order."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Any: ...


class Kind(ABC):
    """A reader of files of one kind. A frozen dataclass: its fields are the options of `quorate.files`."""

    suffixes: ClassVar[tuple[str, ...]]
    """Suffixes of the names of such files."""

    def prepared(self, names: Sequence[str]) -> Kind:
        """Return the kind for these files, by their names below the given folder."""
        return self

    def count(self, path: Path) -> int:
        """Return how many examples are in a file; any error means that it is damaged."""
        return len(self.open(path, ""))

    @abstractmethod
    def open(self, path: Path, name: str) -> Opened:
        """Return the examples of a file. `path` may be a copy of it, `name` is its own."""
