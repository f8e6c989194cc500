"""What a launcher says to each of its workers: on this host, or on several."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence

from tests.support.hosts import Host

SECRET = "a secret that is long enough"


def here(size: int, board: str) -> list[dict[str, str]]:
    """The environment of each of `size` workers of one host; `board` is the socket file of their board."""
    return [{**_seat(rank, size, rank, size), "QUORATE_BOARD": f"unix:{board}"} for rank in range(size)]


def on_hosts(on: Sequence[Host]) -> list[dict[str, str]]:
    """The same where rank r is on the host `on[r]`; they meet at the first one's, as under torchrun."""
    there, local = Counter(host.pid for host in on), Counter[int]()
    said = {"MASTER_ADDR": on[0].address, "MASTER_PORT": str(free_port(on[0])), "QUORATE_TOKEN": SECRET}
    seats = []
    for rank, host in enumerate(on):
        seats.append({**_seat(rank, len(on), local[host.pid], there[host.pid]), **said})
        local[host.pid] += 1
    return seats


def free_port(host: Host) -> int:
    """One that nobody listens at there."""
    with host.socket(socket.SOCK_STREAM) as probe:
        probe.bind((host.address, 0))
        found: int = probe.getsockname()[1]
        return found


def _seat(rank: int, size: int, local: int, there: int) -> dict[str, str]:
    said = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": there}
    return {name: str(value) for name, value in said.items()}
