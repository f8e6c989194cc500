"""Where rank 0 is, for a launcher that says only on which host it runs itself."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from quorate.core.errors import ConfigurationError, WireTimeout

_LOOK_EVERY = 0.1
_ANSWERS_WITHIN = 2.0
"""Seconds; a host that drops what it is sent would be waited for much longer."""


def address_of_first(addresses: Sequence[str], port: str, *, launcher: str, is_first: bool, timeout: float) -> str:
    """The one of `addresses`, or names, of the launcher's host at which rank 0 is reached.

    Rank 0 (`is_first`) finds out whether it is there, and raises `ConfigurationError` if not; the others try each until
    somebody listens at `port`. A single one is taken as it is. Raises `WireTimeout`.
    """
    if is_first:
        here = [one for one in addresses if _is_ours(one)]
        if not here:
            raise ConfigurationError(
                f"rank 0 is on {socket.gethostname()}, and {launcher} runs on another host ({addresses[0]}); set "
                f"MASTER_ADDR to the address of {socket.gethostname()} for all of them, or let {launcher} begin there"
            )
        return here[0]
    if len(addresses) == 1 or not port.isdecimal():
        return addresses[0]
    until = time.monotonic() + timeout
    while True:
        for address in addresses:
            with suppress(OSError), socket.create_connection((address, int(port)), timeout=_ANSWERS_WITHIN):
                return address
        if time.monotonic() > until:
            raise WireTimeout(
                f"rank 0 was not met at port {port} of {', '.join(addresses)} within {timeout:g} s; set MASTER_ADDR to "
                "the address of its host"
            )
        time.sleep(_LOOK_EVERY)


def _is_ours(address: str) -> bool:
    """Whether an address or a name is of this host: a socket can be bound to it."""
    with suppress(OSError):
        for kind, _, _, _, where in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(kind, socket.SOCK_STREAM) as probe:
                probe.bind(where)
                return True
    return False
