"""What kinds of files there are, and what is asked of each."""

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
    """How files of one kind are read. A frozen dataclass: its fields are the options of `quorate.files`."""

    suffixes: ClassVar[tuple[str, ...]]
    """Of the names of such files."""

    def prepared(self, names: Sequence[str]) -> Kind:
        """Knowing all files that there are, by their names below the folder that was given."""
        return self

    def count(self, path: Path) -> int:
        """How many examples are in a file; whatever is raised says that it is damaged."""
        return len(self.open(path, ""))

    @abstractmethod
    def open(self, path: Path, name: str) -> Opened:
        """The examples of a file. `path` may be a copy of it, `name` is its own."""
