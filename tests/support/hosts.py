"""Several hosts on one machine: network namespaces with names of their own, at one switch. For root on Linux only.

The switch is a namespace as well, so that nothing of this has a name that another process could take, and all of it
goes with the processes that hold the namespaces, whatever ends this one. From host 0:

    cable ── port0 · hop0 · up0 ── down0 · switch          (`──`: a cable; `·`: in one bridge)

What a host sends is limited, and lost, at up0, and what it is sent at port0: it learns of neither.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

Direction = Literal["both", "out", "in"]
MOST = 200
_WALL = "tbf rate 1kbit burst 14 limit 14"
"""No frame is so short that it passes."""
_LIMIT = 240.0


def are_possible() -> bool:
    """Whether this user may make network namespaces."""
    has_tools = all(shutil.which(tool) for tool in ("ip", "tc", "unshare", "nsenter"))
    if not (sys.platform.startswith("linux") and has_tools and os.geteuid() == 0):
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0


class Host:
    """One of them: `pid` is a process that is there, `address` where the others reach it."""

    def __init__(self, number: int, name: str, holder: subprocess.Popen[bytes], switch: int) -> None:
        self.name, self.pid, self.address = name, holder.pid, f"10.231.77.{number + 1}"
        self._number, self._holder, self._switch = number, holder, switch
        self._rate: str | None = None

    def limit(self, rate: str | None) -> None:
        """Of its cable, each way: `1mbit`, `100mbit`; None: as fast as the machine."""
        self._rate = rate
        self.heal()

    def cut(self, direction: Direction = "both") -> None:
        """From now on what it sends (`out`), or is sent (`in`), is lost, and nobody is told."""
        for device in self._devices(direction):
            self._at_switch("tc", "qdisc", "replace", "dev", device, "root", *_WALL.split())

    def heal(self) -> None:
        """Its cable is whole."""
        for device in self._devices("both"):
            if self._rate is None:
                with suppress(subprocess.CalledProcessError):  # there was no limit
                    self._at_switch("tc", "qdisc", "del", "dev", device, "root")
            else:
                burst = "256kb" if self._rate.endswith("gbit") else "32kb"  # what passes between two ticks of a timer
                words = f"tbf rate {self._rate} burst {burst} latency 400ms".split()
                self._at_switch("tc", "qdisc", "replace", "dev", device, "root", *words)

    def lose(self) -> None:
        """The host has lost its power: every process on it is gone, and says nothing to the others."""
        self.cut()
        for pid in self.processes():
            if pid != self.pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """All that are on it."""
        own, found = _network_of(self.pid), []
        for name in os.listdir("/proc"):
            if name.isdecimal() and own is not None and _network_of(int(name)) == own:
                found.append(int(name))
        return found

    def run(self, *words: str) -> str:
        """What the command writes there."""
        return _run(*words_on(self.pid), *words)

    def socket(self, kind: int = socket.SOCK_DGRAM) -> socket.socket:
        """A new one of this process, there."""
        with ThreadPoolExecutor(1) as thread:  # only the thread goes there
            return thread.submit(self._socket, kind).result()

    def _socket(self, kind: int) -> socket.socket:
        enter(self.pid, "net")
        return socket.socket(socket.AF_INET, kind)

    def _devices(self, direction: Direction) -> list[str]:
        ways = {"out": [f"up{self._number}"], "in": [f"port{self._number}"]}
        return ways.get(direction) or [*ways["out"], *ways["in"]]

    def _at_switch(self, *words: str) -> None:
        _run(*words_on(self._switch), *words)


@contextmanager
def hosts(count: int, rate: str | None = None) -> Iterator[list[Host]]:
    """So many, which go with the block, with all their processes."""
    assert 0 < count <= MOST
    names = [_name(number) for number in range(count)]
    holders = [_holder(name) for name in ("switch", *names)]
    try:
        for holder in holders:
            assert holder.stdout is not None and holder.stdout.readline() == b"up\n"
        switch, *theirs = holders
        found = [Host(n, name, holder, switch.pid) for n, (name, holder) in enumerate(zip(names, theirs, strict=True))]
        _batch(switch.pid, ["link add switch type bridge", *(line for h in found for line in _wired(h, h.pid))])
        ups = [f"{kind}{n}" for n in range(count) for kind in ("port", "hop", "up", "down")]
        _batch(switch.pid, [f"link set {device} up" for device in ("switch", *ups)])
        for host in found:
            own = (f"address add {host.address}/24 dev cable", "link set cable up", "link set lo up")
            _batch(host.pid, own)
            if rate is not None:
                host.limit(rate)
        yield found
    finally:
        for holder in holders:
            for pid in Host(0, "", holder, 0).processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            holder.kill()
            holder.communicate()


def enter(pid: int, *kinds: str) -> None:
    """From here on this thread is where that process is: `net`, `uts`."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name in kinds:
        with open(f"/proc/{pid}/ns/{name}") as place:
            if libc.setns(place.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"cannot enter the {name} namespace of {pid}")


def words_on(host: int) -> list[str]:
    """What to put before a command so that it runs on the host of this process."""
    return ["nsenter", "--net", "--uts", "--target", str(host), "--"]


def _name(number: int) -> str:
    return ("first", "second", "third", "fourth")[number] if number < 4 else f"host{number}"


def _holder(name: str) -> subprocess.Popen[bytes]:
    """A process in a new namespace, which ends when this one does; out of reach of Ctrl-C."""
    script = f"hostname {name} && echo up && exec cat"
    words = ["unshare", "--net", "--uts", "sh", "-c", script]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


def _wired(host: Host, pid: int) -> list[str]:
    n = host._number
    return [
        f"link add hop{n} type bridge",
        f"link add port{n} type veth peer name cable netns {pid}",
        f"link add up{n} type veth peer name down{n}",
        f"link set port{n} master hop{n}",
        f"link set up{n} master hop{n}",
        f"link set down{n} master switch",
    ]


def _batch(host: int, lines: Sequence[str]) -> None:
    _run(*words_on(host), "ip", "-batch", "-", given="\n".join(lines))


def _run(*words: str, given: str = "") -> str:
    ended = subprocess.run(words, check=True, capture_output=True, text=True, input=given, timeout=_LIMIT)
    return ended.stdout


def _network_of(pid: int) -> int | None:
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    return None
