"""The hosts of a run on several hosts, and how to reach them."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from quorate.core.errors import ConfigurationError

_OPTIONS = "-T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3"

MOST = 1024
"""Workers of one host."""
_ONE = re.compile(r"(?P<name>[^\s,:\-\[][^\s,:]*|\[[0-9a-fA-F:.%\w]+\])(?::(?P<count>\d{1,4}))?")


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The values of `--hosts`, `--ssh` and `--env`. Raises `ConfigurationError` for invalid ones."""

    text: str
    """The hosts: `a:4,b:4`."""
    ssh: str = "ssh"
    env: Sequence[str] = ()
    """Variables for the workers: `NAME`, or `NAME=value`."""

    def __post_init__(self) -> None:
        layout_from(self.text)
        try:
            has_words = bool(shlex.split(self.ssh))
        except ValueError:
            has_words = False
        if not has_words:
            raise ConfigurationError(f"--ssh {self.ssh!r} is not a command")
        for entry in self.env:
            if not entry.partition("=")[0].isidentifier():
                raise ConfigurationError(
                    f'--env "{entry}" is not a variable; it should be as in --env NAME or --env NAME=value'
                )

    @cached_property
    def layout(self) -> Layout:
        """Which ranks each of them has."""
        return layout_from(self.text)

    @property
    def commands(self) -> dict[str, list[str]]:
        """Return for each host the command that reaches it."""
        return {place.host: ssh_words(self.ssh, place.host) for place in self.layout.places}

    def as_json(self) -> dict[str, Any]:
        """Return the entry of `run.json`."""
        return {"hosts": self.text, "ssh": self.ssh, "env": [*self.env]}


def ssh_words(ssh: str, host: str) -> list[str]:
    """The command that starts the agent on `host`, which has the same Python at the same place."""
    agent = f"exec {shlex.quote(sys.executable)} -m quorate.launch.hosts.agent"
    return [*shlex.split(ssh), *_OPTIONS.split(), "--", host, agent]


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
