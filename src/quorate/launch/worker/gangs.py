"""Gangs of workers: torchrun restarts all where one died, or a host has come or gone.

Its store mostly stays, and holds what the workers before have left there, their failure too. So each gang keeps its
notes under a name of its own, on which its workers agree. In the store are, below `quorate`:

| key | what |
|---|---|
| `hello/<rank>` | a word that the newest worker of this rank has drawn |
| `gang` | the newest `Gang` |
| `here/<name>/<rank>` | there where that worker has seen its own word in `gang`, so that the name is of its own gang |

The torchrun of each host remembers the folder of the run, on that host, as long as it lives. A gang continues in it if
one of its workers has been started by a torchrun that remembers one.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from quorate.core.contracts import Board, Wire
from quorate.core.errors import WireTimeout, ranks_in_words
from quorate.core.fields import Fields
from quorate.wire.socket_folder import find_socket_folder, make_socket_folder
from quorate.wire.store import StoreBoard

_RECORDS = "records"
_LOOK_EVERY = 0.05


@dataclass(frozen=True, slots=True)
class Gang(Fields):
    """The name of a gang, and the words that its rank 0 has seen, by rank."""

    name: str
    words: Mapping[str, str]


def board_in(store: dist.Store, rank: int, size: int, timeout: float) -> Board:
    """The board of this worker's gang. Raises `WireTimeout`."""
    whole = dist.PrefixStore("quorate", store)
    if not _is_under_torchrun():
        return StoreBoard(whole, timeout)
    name = name_of_gang(StoreBoard(whole, timeout), rank, size, timeout)
    return StoreBoard(dist.PrefixStore(f"gang/{name}", whole), timeout)


def remembered_folder(wire: Wire) -> Path | None:
    """Return the records' folder of the gangs before this one; called by all workers. Raises `WireTimeout`."""
    if not _is_under_torchrun():
        return None
    folder = find_socket_folder(_label())
    own = b"" if folder is None else (folder / _RECORDS).read_bytes()
    wire.board.set(f"begun/{wire.rank}", own)
    wire.board.wait([f"begun/{peer}" for peer in range(wire.size)], wire.timeout)
    for peer in range(wire.size):
        written = wire.board.get(f"begun/{peer}")
        if written:
            return Path(written.decode())
    return None


def remember_folder(folder: Path) -> None:
    """Tell the gangs that this host's torchrun may start later."""
    if _is_under_torchrun() and os.environ.get("LOCAL_RANK") == "0" and find_socket_folder(_label()) is None:
        place = make_socket_folder(_label(), of=os.getppid())
        (place / "new").write_text(str(folder), encoding="utf-8")
        (place / "new").replace(place / _RECORDS)


def _is_under_torchrun() -> bool:
    return bool(os.environ.get("TORCHELASTIC_RUN_ID"))


def _label() -> str:
    return f"torchrun {os.getppid()} {os.environ['TORCHELASTIC_RUN_ID']}"


def name_of_gang(lasting: Board, rank: int, size: int, timeout: float) -> str:
    """Return a name that all of these `size` workers, and none before them, share. Raises `WireTimeout`."""
    word = secrets.token_hex(8)
    lasting.set(f"hello/{rank}", word.encode())
    until = time.monotonic() + timeout
    words: dict[str, str] = {}
    missing = list(range(1, size))
    while True:
        if rank == 0:
            greetings = {str(peer): (lasting.get(f"hello/{peer}") or b"").decode() for peer in missing}
            if any(words.get(peer) != said for peer, said in greetings.items()):
                words |= greetings
                lasting.set("gang", Gang(word, words).to_bytes())
            missing = [peer for peer in missing if lasting.get(f"here/{word}/{peer}") is None]
            if not missing:
                return word
        else:
            written = lasting.get("gang")
            gang = None if written is None else Gang.from_bytes(written)
            if gang is not None and gang.words.get(str(rank)) == word:
                lasting.set(f"here/{gang.name}/{rank}", b"1")
                return gang.name
        if time.monotonic() > until:
            late = missing if rank == 0 else [0]
            raise WireTimeout(f"rank {rank} waited {timeout:g} s for {ranks_in_words(late)} in quorate.join", late)
        time.sleep(_LOOK_EVERY)
