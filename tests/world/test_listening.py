"""What a run listens at: files that only this user can open, and the loopback; nothing that other machines reach."""

from __future__ import annotations

import ipaddress
import json
import os
import stat
import sys
from pathlib import Path

import pytest
import torch

import quorate
from quorate.launch.worker.world import World
from tests.support.processes import run_real_world

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

_LISTENS = "0A"
_ACCEPTS = 0x10000
"""Of a Unix socket's flags in /proc/net/unix: it listens."""


def sockets_of(pid: int) -> set[str]:
    """The inode numbers of a process's sockets."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def address_of(written: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """`0100007F` as /proc/net has it: words of four bytes, each in the machine's order."""
    words = [bytes.fromhex(written[at : at + 8]) for at in range(0, len(written), 8)]
    return ipaddress.ip_address(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words))


def listening(pid: int) -> tuple[list[str], list[str]]:
    """Where a process listens: internet addresses, and paths of Unix sockets."""
    mine, addresses, paths = sockets_of(pid), [], []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and fields[9] in mine:
                addresses.append(str(address_of(fields[1].partition(":")[0])))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & _ACCEPTS and fields[6] in mine:
            paths.append(fields[7] if len(fields) > 7 else "(none)")
    return addresses, paths


def train_and_look(world: World) -> str:
    for name in ("all-reduce", "quorum"):
        model = torch.nn.Linear(40, 40)
        optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, strategy=name)
        for _ in range(3):
            model(torch.ones(2, 40)).sum().backward()
            optimizer.step()
        optimizer.finish()
    x = torch.ones(3)
    torch.distributed.all_reduce(x)
    addresses, paths = listening(os.getpid())
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in paths if path.startswith("/")]
    folders = [stat.S_IMODE(os.stat(Path(path).parent).st_mode) for path in paths if path.startswith("/")]
    world.barrier()
    return json.dumps([addresses, paths, modes, folders])


def test_a_run_on_one_machine_is_reached_from_nowhere_else() -> None:
    for told in run_real_world(2, train_and_look):
        addresses, paths, modes, folders = json.loads(told)
        assert addresses, "gloo listens, or nothing was looked at"
        assert all(ipaddress.ip_address(address).is_loopback for address in addresses)
        assert paths and all(path.startswith("/") for path in paths), "a name without a file is open to all users"
        assert set(modes) == {0o600} and set(folders) == {0o700}
