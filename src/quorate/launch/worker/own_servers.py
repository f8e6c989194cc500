"""Separate servers: a process learns of them as it joins, and is prepared if it is one."""

from __future__ import annotations

import os

from quorate.core.errors import ConfigurationError
from quorate.data.context import data_context
from quorate.launch.local.newcomers import MOST
from quorate.servers.own import OwnServers
from quorate.wire.current import Place
from quorate.wire.failure import note_server
from quorate.wire.survivors import DeathTolerance, Survivors

SERVERS = "QUORATE_SERVERS"
"""How many of the highest ranks are servers."""


def prepare_servers(place: Place) -> None:
    """Let this worker, or server, know which ranks are servers.

    On one, what workers call together before `distribute` is its own, alone. Raises `ConfigurationError` for a number
    that cannot be.
    """
    wire, own = place.wire, place.context(OwnServers)
    text = os.environ.get(SERVERS, "")
    if text:
        most = min(MOST, wire.max_size - wire.size)
        if not (text.isdecimal() and len(text) < 10 and int(text) <= most):
            raise ConfigurationError(
                f"{SERVERS} is {text!r}; it must be at most {most}, the number of ranks that are not workers"
            )
        own.ranks = range(wire.max_size - int(text), wire.max_size)
    if wire.rank in own.ranks:
        note_server(wire.board, wire.rank)
        data_context(place).seat = None
        place.context(DeathTolerance).survivors = Survivors(wire.channel("survivors"))
        place.leaving.append(lambda: _check(own))


def _check(own: OwnServers) -> None:
    if not own.has_served:
        raise ConfigurationError(
            "this rank is a server (--servers), but the script never called quorate.distribute; leave out --servers"
        )
