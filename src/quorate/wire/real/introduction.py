"""Notes of workers about themselves on the board at the start, and the check that they match."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from quorate.core.contracts import Board
from quorate.core.errors import ConfigurationError
from quorate.wire.real.encryption import check_wishes, wish
from quorate.wire.real.places import are_here, part_from
from quorate.wire.real.trust import check_token, key_of, machine, sign, signed


@dataclass(frozen=True)
class Introduced:
    """The result of an introduction on one worker."""

    token: bytes
    """The run's token, drawn by rank 0."""
    key: bytes
    """The key for signatures between hosts; empty on one host."""
    places: dict[int, str]
    """The machine of each rank."""
    is_local: bool
    """Whether all workers are on this machine."""


def introduce(
    board: Board, prefix: str, rank: int, size: int, host: str, secret: str, *, is_encrypted: bool, timeout: float
) -> Introduced:
    """Write the place and the wish of this worker, and wait for those of the others; `secret` is the common token.

    Raises `ConfigurationError`, on all workers, where they are on several machines and do not match.
    """
    board.set(f"{prefix}/host/{rank}", host.encode())
    board.set(f"{prefix}/wish/{rank}", wish(is_encrypted=is_encrypted))
    if rank == 0:
        board.set(f"{prefix}/token", secrets.token_hex(32).encode())
    everyone = range(size)
    board.wait([f"{prefix}/token"], timeout)
    token = board.get(f"{prefix}/token") or b""
    nonce = token + b" tls" if is_encrypted else token  # signatures without TLS are invalid with it
    board.set(f"{prefix}/place/{rank}", sign(key_of(secret, nonce) if secret else b"", "place", rank, machine()))
    board.wait([f"{prefix}/place/{peer}" for peer in everyone], timeout)
    written = [board.get(f"{prefix}/place/{peer}") or b"" for peer in everyone]
    places = {peer: signed(place) for peer, place in zip(everyone, written, strict=True)}
    if are_here(places, joins=rank >= size):
        return Introduced(token, b"", places, is_local=True)
    hosts = {peer: (board.get(f"{prefix}/host/{peer}") or b"").decode() for peer in everyone}
    wishes = {peer: board.get(f"{prefix}/wish/{peer}") or b"" for peer in {*everyone, rank}}
    try:
        check_wishes(wishes, hosts | {rank: host})
        key = check_token(secret, nonce, rank, written, hosts)
    except ConfigurationError:
        part_from(board, prefix, rank, everyone)
        raise
    return Introduced(token, key, places, is_local=False)
