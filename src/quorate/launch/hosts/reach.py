"""The hosts of a run on several hosts, and how to reach them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.launch.hosts.layout import Layout, layout_from
from quorate.launch.hosts.link import ssh_words


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
