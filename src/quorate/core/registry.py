"""Names of choices for the user: one registry per family, listed without imports.

A name may stand for a place in the source (`module.path:attribute`) that is imported at its first use. So the command
line can list every strategy, with its one-line summary, before torch is loaded. In some families the path of a Python
file stands for the one object that the file registers.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from quorate.core.errors import ConfigurationError, unknown
from quorate.core.source import Source, read_source

T = TypeVar("T")
U = TypeVar("U")

_MANY = 20
"""Names of one family, from which on an error names the command that lists them."""


class Registry(Generic[T]):
    """The objects of one family, by name.

    `kind` is the family's noun in messages ("strategy"). `places` maps names to `module.path:attribute`; these are
    imported by `get`, one at a time. With `takes_files` the path of a Python file is a name, too, for the object that
    the file registers. Iteration gives the names, sorted.
    """

    def __init__(self, kind: str, places: Mapping[str, str] | None = None, *, takes_files: bool = False) -> None:
        self.kind, self._takes_files = kind, takes_files
        self._places: dict[str, str] = dict(places or {})
        self._readable = frozenset(self._places)
        self._loaded: dict[str, T] = {}
        self._files: dict[Path, str] = {}
        """The name that each file has registered."""

    def register(self, name: str) -> Callable[[U], U]:
        """Return a decorator that registers a class or function as `name` and returns it unchanged.

        Raises `ConfigurationError` if the name belongs to another definition. The *same* definition (module and
        qualified name) may be registered again and replaces the earlier one. Notebooks run a cell twice, and the
        virtual world runs a user's script once per worker.
        """

        def enter(thing: U) -> U:
            definition: Any = thing
            place = f"{definition.__module__}:{definition.__qualname__}"
            owner = self._places.setdefault(name, place)
            if owner != place:
                raise ConfigurationError(
                    f'the {self.kind} name "{name}" already belongs to {owner}; give {place} another name'
                )
            self._loaded[name] = cast(T, thing)
            return thing

        return enter

    def get(self, name: str) -> T:
        """Return the object registered as `name`, imported if needed. Raises `ConfigurationError` if unknown."""
        name = self.registered(name)
        if name not in self._places:
            raise self._unknown(name)
        if name not in self._loaded:
            module, attribute = _module_and_attribute(self._places[name])
            self._loaded[name] = getattr(importlib.import_module(module), attribute)
        return self._loaded[name]

    def registered(self, name: str) -> str:
        """Return `name`; for the path of a Python file, run it once and return the name that it registers.

        Raises `ConfigurationError` for a file that is not there, or does not register one thing of this kind.
        """
        if not (self._takes_files and name.endswith(".py")):
            return name
        path = Path(name).resolve()
        if path not in self._files:
            before = set(self._loaded)
            _run(path, self.kind)
            names = sorted(set(self._loaded) - before)
            if len(names) != 1:
                raise ConfigurationError(
                    f"{name} registers {' and '.join(names) or 'nothing'}; the file of a {self.kind} registers one "
                    f'with @register("name")'
                )
            self._files[path] = names[0]
        return self._files[path]

    @property
    def places(self) -> Mapping[str, str]:
        """The place, `module.path:attribute`, of each name."""
        return MappingProxyType(self._places)

    def name_of(self, thing: object) -> str | None:
        """Return the name of a class or function that is registered; None for any other."""
        definition: Any = thing
        place = f"{definition.__module__}:{definition.__qualname__}"
        return next((name for name, known in self._places.items() if known == place), None)

    def names(self) -> tuple[str, ...]:
        """Return every known name, sorted. Imports nothing."""
        return tuple(sorted(self._places))

    def summary(self, name: str) -> str:
        """Return the first line of the documentation of `name`; "" where there is none.

        It is read from the source text, without an import. Where there is no source (only bytecode is installed, or a
        script registered it), the object is loaded. Raises `ConfigurationError` for an unknown name.
        """
        source = self.source(name)
        documentation = (self.get(name).__doc__ or "") if source is None else source.documentation
        return documentation.strip().partition("\n")[0].rstrip()

    def source(self, name: str) -> Source | None:
        """Return the documentation and settings of `name` from its source text. Imports nothing, but runs a file.

        None where there is no source. Raises `ConfigurationError` for an unknown name, and as `registered` does.
        """
        name = self.registered(name)
        if name not in self._places:
            raise self._unknown(name)
        has_source = name in self._readable or name in self._files.values()
        return read_source(self._places[name]) if has_source else None

    def _unknown(self, name: str) -> ConfigurationError:
        return unknown(self.kind, name, self._places, listed_by="quorate list" if len(self) > _MANY else "")

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        if self._takes_files and isinstance(name, str) and name.endswith(".py"):
            return Path(name).is_file()
        return name in self._places

    def __len__(self) -> int:
        return len(self._places)


def _run(path: Path, kind: str) -> None:
    """Import a file outside of packages, under a unique name."""
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}; name a {kind}, or a file that registers one")
    name = f"{path.stem}_{zlib.crc32(os.fsencode(path)):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _module_and_attribute(place: str) -> tuple[str, str]:
    module, colon, attribute = place.partition(":")
    assert colon, f"{place!r} is not module.path:attribute"
    return module, attribute
