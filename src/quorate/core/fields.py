"""Declared parts of messages and values of the board, which are JSON."""

from __future__ import annotations

import json
from abc import ABC
from collections.abc import Mapping
from typing import Any, Self

Header = Mapping[str, Any]


class Fields(ABC):
    """A frozen dataclass: a part of a header, or a value of the board. By default each field is one key, in order."""

    __slots__ = ()
    __match_args__: tuple[str, ...]

    def header(self) -> dict[str, Any]:
        """Return the JSON."""
        header = {}
        for name in self.__dataclass_fields__:  # type: ignore[attr-defined]
            header[name] = getattr(self, name)
        return header

    @classmethod
    def read(cls, header: Header, **others: Any) -> Self:
        """Return the fields of a header, which may have other keys, too; `others` are not in it."""
        fields = others
        for name in cls.__match_args__:
            if name in header:
                fields[name] = header[name]
        return cls(**fields)

    def header_without_none(self) -> dict[str, Any]:
        """Return the JSON, in which fields that are None have no key."""
        return {name: value for name in self.__match_args__ if (value := getattr(self, name)) is not None}

    def to_bytes(self) -> bytes:
        """Return the value for the board."""
        return json.dumps(self.header()).encode()

    @classmethod
    def from_bytes(cls, written: bytes) -> Self:
        """Return the fields of a value of the board."""
        return cls.read(json.loads(written))
