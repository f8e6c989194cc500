"""What workers say of themselves on the board before they meet, and whether they go together."""

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
    """What one worker knows of the others then."""

    token: bytes
    """The run's, drawn by rank 0."""
    key: bytes
    """What is signed between hosts is signed with; empty on one host."""
    places: dict[int, str]
    """By rank, which machine it is on."""
    is_local: bool
    """Whether all are on this machine."""


def introduce(
    board: Board, prefix: str, rank: int, size: int, host: str, secret: str, *, is_encrypted: bool, timeout: float
) -> Introduced:
    """Say where this worker is and what it wants, and wait for the others to say so; `secret` is what all are given.

    Raises `ConfigurationError`, on all of them, where they are on several machines and do not go together.
    """
    board.set(f"{prefix}/host/{rank}", host.encode())
    board.set(f"{prefix}/wish/{rank}", wish(is_encrypted=is_encrypted))
    if rank == 0:
        board.set(f"{prefix}/token", secrets.token_hex(32).encode())
    everyone = range(size)
    board.wait([f"{prefix}/token"], timeout)
    token = board.get(f"{prefix}/token") or b""
    nonce = token + b" tls" if is_encrypted else token  # what was signed without it says nothing with it
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
