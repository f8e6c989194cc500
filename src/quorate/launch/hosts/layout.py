"""`--hosts a:4,b:4`: which hosts there are, and how many workers each has."""

from __future__ import annotations

import re
from dataclasses import dataclass

from quorate.core.errors import ConfigurationError

MOST = 1024
"""Workers of one host."""
_ONE = re.compile(r"(?P<name>[^\s,:\-\[][^\s,:]*|\[[0-9a-fA-F:.%\w]+\])(?::(?P<count>\d{1,4}))?")


@dataclass(frozen=True)
class Place:
    """One host, in the form that ssh takes, and its ranks."""

    host: str
    ranks: range


@dataclass(frozen=True)
class Layout:
    """The hosts of a run, in the order of their ranks."""

    places: tuple[Place, ...]

    @property
    def size(self) -> int:
        """How many workers there are in all."""
        return self.places[-1].ranks.stop

    @property
    def in_words(self) -> str:
        """`a (4), b (4)`."""
        return ", ".join(f"{place.host} ({len(place.ranks)})" for place in self.places)

    def place_of(self, rank: int) -> int:
        """The number of the host that has it."""
        return next(number for number, place in enumerate(self.places) if rank in place.ranks)


def layout_from(text: str) -> Layout:
    """Return the layout of `a:4,user@b:4,[fd00::1]:2,c`; without a number a host has one worker.

    Raises `ConfigurationError` for any other text, and for a host that is named twice.
    """
    places: list[Place] = []
    for entry in text.split(","):
        match = _ONE.fullmatch(entry.strip())
        count = 0 if match is None else int(match["count"] or 1)
        if match is None or not 0 < count <= MOST:
            raise ConfigurationError(
                f'--hosts "{text}": "{entry}" is not a host with a number of workers from 1 to {MOST}; it should be as '
                "in "
                "--hosts first:4,second:4"
            )
        host = match["name"].strip("[]")
        if any(place.host == host for place in places):
            raise ConfigurationError(f'--hosts "{text}" names {host} twice; give all its workers in one place')
        begin = places[-1].ranks.stop if places else 0
        places.append(Place(host, range(begin, begin + count)))
    return Layout(tuple(places))
