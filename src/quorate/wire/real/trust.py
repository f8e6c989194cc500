"""Trust among workers on several machines: their places, signed with a key from the secret that they share.

The board of such a run is torch's own store, to which any process that reaches its port can write. So the entries read
from it are signed: the place of each worker, and the address at which it listens. The key is made of the token, which
never leaves a process, and of a nonce of the run, so that signatures for one run are invalid in another.
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
"""Shortest token, in characters."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SPACES = ("mnt", "net")


def machine() -> str:
    """Return an identity shared by the processes that can use one socket file: the machine, with the container, if any.

    The name of a host is not enough: machines and containers may share one.
    """
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(_BOOT.read_text(encoding="ascii").strip())
    for space in _SPACES:
        with suppress(OSError):
            parts.append(str(os.stat(f"/proc/self/ns/{space}").st_ino))
    return "|".join(parts)


def key_of(token: str, nonce: bytes) -> bytes:
    """Return the key of one run."""
    return hmac.new(token.encode(), b"quorate run " + nonce, hashlib.sha256).digest()


def sign(key: bytes, kind: str, rank: int, value: str) -> bytes:
    """Return `value` with the signature of `rank` before it; without a key the signature is empty."""
    return f"{_signature(key, kind, rank, value)} {value}".encode()


def signed(written: bytes) -> str:
    """Return the value given to `sign`, without a check of the signature."""
    return written.partition(b" ")[2].decode(errors="replace")


def is_signed(key: bytes, kind: str, rank: int, written: bytes) -> bool:
    """Whether `rank` signed `written` with `key`."""
    signature, _, value = written.partition(b" ")
    right = _signature(key, kind, rank, value.decode(errors="replace")).encode()
    return bool(right) and hmac.compare_digest(signature, right)


def check_token(token: str, nonce: bytes, rank: int, places: Sequence[bytes], hosts: Mapping[int, str]) -> bytes:
    """Return the run's key. Raises `ConfigurationError`, on all workers, where their tokens differ."""
    names = " and ".join(sorted({signed(place).partition("|")[0] for place in places}))
    if not token:
        raise ConfigurationError(
            f"rank {rank} has no token, and the workers are on several machines ({names}), where one is required. Set "
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


def _signature(key: bytes, kind: str, rank: int, value: str) -> str:
    return hmac.new(key, f"{kind} {rank} {value}".encode(), hashlib.sha256).hexdigest() if key else ""
