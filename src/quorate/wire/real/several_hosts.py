"""The move of a run between hosts, before training, to a board that outlives any host."""

from __future__ import annotations

from collections.abc import Iterable

from quorate.core.contracts import Board
from quorate.core.errors import ConfigurationError
from quorate.wire.real.kept_board import KeptBoard
from quorate.wire.real.trust import is_signed, sign, signed


def leave_meeting_place(
    board: Board, kept: KeptBoard, rank: int, size: int, key: bytes, timeout: float, *, prefix: str
) -> None:
    """Move all `size` workers, and one that joins them, to `kept`; `board`, where they met, may end then.

    Their notes there below `prefix` about hosts and addresses are on it from the start.
    """
    board.set(f"{prefix}/copy/{rank}", sign(key, "copy", rank, kept.address))
    wanted = [f"{prefix}/{kind}/{peer}" for kind in ("copy", "mail") for peer in range(size)]
    board.wait(wanted, timeout)
    notes = {name: board.get(name) or b"" for name in _all_keys(prefix, size)}
    addresses = {}
    for peer in range(size):
        written = notes[f"{prefix}/copy/{peer}"]
        if not is_signed(key, "copy", peer, written):
            raise ConfigurationError(f"the address of rank {peer} is not signed with the token of this run")
        addresses[peer] = signed(written)
    kept.begin({peer: address for peer, address in addresses.items() if peer != rank}, notes)


def _all_keys(prefix: str, size: int) -> Iterable[str]:
    return [f"{prefix}/{kind}/{peer}" for kind in ("host", "place", "mail", "copy", "wish") for peer in range(size)]
