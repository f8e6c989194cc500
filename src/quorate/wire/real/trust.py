"""Workers on several machines: who is on which, and how they know each other by the secret they have in common.

The board of such a run is torch's own store, which anybody can write to who reaches its port. So what is taken from it
there is signed: where each worker is, and at which address it listens. The key is made of the token, which never leaves
a process, and of a nonce of the run, so that what was signed for one run says nothing in another.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from quorate.core.errors import ConfigurationError, ranks_in_words

LEAST_TOKEN = 16
"""Characters."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SPACES = ("mnt", "net")


def machine() -> str:
    """What processes have in common that can meet at a socket file: machine, and where it has several, the container.

    The name of a host alone does not tell: machines and containers may share one.
    """
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(_BOOT.read_text(encoding="ascii").strip())
    for space in _SPACES:
        with suppress(OSError):
            parts.append(str(os.stat(f"/proc/self/ns/{space}").st_ino))
    return "|".join(parts)


def key_of(token: str, nonce: bytes) -> bytes:
    """The key of one run."""
    return hmac.new(token.encode(), b"quorate run " + nonce, hashlib.sha256).digest()


def sign(key: bytes, what: str, rank: int, value: str) -> bytes:
    """`value`, with the signature of `rank` before it; without a key the place of the signature is empty."""
    return f"{_signature(key, what, rank, value)} {value}".encode()


def signed(written: bytes) -> str:
    """What was given to `sign`; whether the signature is right is not asked."""
    return written.partition(b" ")[2].decode(errors="replace")


def is_signed(key: bytes, what: str, rank: int, written: bytes) -> bool:
    """Whether `rank` signed this with `key`."""
    signature, _, value = written.partition(b" ")
    right = _signature(key, what, rank, value.decode(errors="replace")).encode()
    return bool(right) and hmac.compare_digest(signature, right)


def check_token(token: str, nonce: bytes, rank: int, places: Sequence[bytes], hosts: Mapping[int, str]) -> bytes:
    """The run's key, where every worker has the same token. Raises `ConfigurationError`, on all of them."""
    names = " and ".join(sorted({signed(place).partition("|")[0] for place in places}))
    if not token:
        raise ConfigurationError(
            f"rank {rank} has no token, and the workers are on several machines ({names}), where one is required; set "
            f"QUORATE_TOKEN to the same secret of at least {LEAST_TOKEN} characters on each of them"
        )
    if len(token) < LEAST_TOKEN:
        raise ConfigurationError(
            f"QUORATE_TOKEN has {len(token)} characters; between machines it has {LEAST_TOKEN} at least"
        )
    key = key_of(token, nonce)
    others = [peer for peer, place in enumerate(places) if not is_signed(key, "place", peer, place)]
    if others:
        where = ", ".join(sorted({hosts[peer] for peer in others}))
        raise ConfigurationError(
            f"{ranks_in_words(others)} (host {where}) and rank {rank} (host {hosts[rank]}) have different tokens; set "
            "QUORATE_TOKEN to the same secret on every machine"
        )
    return key


def _signature(key: bytes, what: str, rank: int, value: str) -> str:
    return hmac.new(key, f"{what} {rank} {value}".encode(), hashlib.sha256).hexdigest() if key else ""
