"""The workers of a run on several hosts as a crew sees them, and `run_on_hosts`."""

from __future__ import annotations

import ipaddress
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from quorate.launch.hosts.frames import BEAT
from quorate.launch.hosts.link import LEAVE_SECONDS, LOST, Link
from quorate.launch.hosts.reach import Hosts
from quorate.launch.local.children import Child, Command
from quorate.launch.local.console import QuietConsole, ShownConsole
from quorate.launch.local.processes import Conclusion, run_crew, show
from quorate.launch.local.verdict import log_of

_OURS = (
    "QUORATE_", "RANK", "WORLD_SIZE", "OMP_NUM_THREADS", "PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONPATH",
    "TORCH_DISABLE_",
)  # fmt: skip
_TAKEN_ALONG = ("QUORATE_TOKEN", "QUORATE_SILENCE", "QUORATE_TLS", "QUORATE_CONGESTION", "QUORATE_GPU_BACKEND")
_OF_LIBRARIES = ("NCCL_", "TORCH_NCCL_", "RCCL_", "UCX_", "CUDA_", "HSA_")
"""Variables of the launcher's own environment that workers get, besides those named by the user. The latter are the
beginnings of names: these variables set up the communication between GPUs, and must be the same on all hosts."""


class Worker:
    """One of them: a `Child` and `Distant`."""

    def __init__(self, link: Link, rank: int) -> None:
        self._link, self._rank = link, rank
        self.pid = None

    @property
    def host(self) -> str:
        """The name of its machine."""
        return str(self._link.about.get("host", self._link.place.host))

    @property
    def why(self) -> str | None:
        """The reason, if its host was lost, or could not start it."""
        if self._rank in self._link.statuses:
            return None
        if self._link.refused is not None:
            return f"could not be started: {self._link.refused}"
        return self._link.lost

    def poll(self) -> int | None:
        """Its exit status; None while it lives."""
        status = self._link.statuses.get(self._rank)
        if status is None and self._link.refused is not None:
            return 2
        return LOST if status is None and self._link.lost is not None else status

    def send(self, signum: signal.Signals | int, *, to_group: bool) -> None:
        """Pass a signal on."""
        self._link.signal(self._rank, signum, to_group=to_group)


class HostRanks:
    """The workers to be, on hosts that are connected; a context, which leaves nobody there.

    `folder` here keeps what they print; rank 0's is `shown` as well.
    """

    def __init__(self, command: Command, hosts: Hosts, folder: Path, shown: ShownConsole | None = None) -> None:
        self._command, self._hosts, self._layout = command, hosts, hosts.layout
        self._consoles: list[QuietConsole | ShownConsole] = [
            QuietConsole(log_of(folder, 0)) if shown is None else shown
        ]
        self._consoles += [QuietConsole(log_of(folder, rank)) for rank in range(1, self._layout.size)]
        self._streams = [tuple(os.dup(stream) for stream in console.streams()) for console in self._consoles]
        for console in self._consoles:
            console.started()
        self._token = os.environ.get("QUORATE_TOKEN", "").strip() or secrets.token_hex(32)
        self._links: list[Link] = []
        self._is_over = threading.Event()

    def __enter__(self) -> HostRanks:
        with ExitStack() as stack:
            stack.callback(self._close)
            self._links += [Link(place, self._hosts.ssh, self._wrote) for place in self._layout.places]
            for link in self._links:
                link.connect()
            threading.Thread(target=self._beat, name="quorate beat", daemon=True).start()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def start(self, rank: int, environment: Mapping[str, str]) -> Child:
        """Let `rank` begin on its host."""
        number = self._layout.place_of(rank)
        link, command = self._links[number], self._command
        script = None if command.is_module else command.script
        env = {**self._shared(environment), **self._rank_environment(rank, number)}
        link.start(rank, command.words, script, os.getcwd(), env)
        return Worker(link, rank)

    def finish(self) -> None:
        """All have ended."""
        for link in self._links:
            link.leave()
        for link in self._links:
            link.close(LEAVE_SECONDS)
        self._end_consoles()

    def _shared(self, environment: Mapping[str, str]) -> dict[str, str]:
        shared = {name: value for name, value in environment.items() if name.startswith(_OURS)}
        shared |= {name: os.environ[name] for name in _TAKEN_ALONG if os.environ.get(name)}
        shared |= {name: value for name, value in os.environ.items() if name.startswith(_OF_LIBRARIES)}
        for entry in self._hosts.env:
            name, is_given, value = entry.partition("=")
            if is_given or name in os.environ:
                shared[name] = value if is_given else os.environ[name]
        return shared

    def _rank_environment(self, rank: int, number: int) -> dict[str, str]:
        ranks, addresses = self._layout.places[number].ranks, self._addresses()
        first = self._links[0].about
        variables = {
            "LOCAL_RANK": str(rank - ranks.start),
            "LOCAL_WORLD_SIZE": str(len(ranks)),
            "GROUP_RANK": str(number),
            "MASTER_ADDR": addresses[0] or str(first["host"]),
            "MASTER_PORT": str(first["port"]),
            "QUORATE_TOKEN": self._token,
        }
        return {**variables, "QUORATE_HOST": addresses[number]} if addresses[number] else variables

    def _addresses(self) -> list[str]:
        """By host, where the others reach it: where ssh has; of this machine, the address on the way to another."""
        reached = [str(link.about.get("address", "")) for link in self._links]
        far = [address for address in reached if address and not _is_loopback(address)]
        return [address if address and not _is_loopback(address) else _towards(far) for address in reached]

    def _wrote(self, kind: str, rank: int, data: bytes) -> None:
        with suppress(OSError, IndexError):
            stream = self._streams[rank][0 if kind == "out" else 1]
            left = memoryview(data)
            while left:
                left = left[os.write(stream, left) :]

    def _beat(self) -> None:
        while not self._is_over.wait(BEAT):
            for link in self._links:
                link.beat()

    def _close(self) -> None:
        self._is_over.set()
        for link in self._links:
            link.close()
        self._end_consoles()

    def _end_consoles(self) -> None:
        streams, self._streams = self._streams, []
        for stream in {each for pair in streams for each in pair}:
            os.close(stream)
        if streams:
            for console in self._consoles:
                console.finish()


def run_on_hosts(command: Command, hosts: Hosts, folder: Path) -> Conclusion:
    """Run as `run_shown`, on several hosts.

    Raises `ConfigurationError` for a host that cannot be reached, or has no quorate of this version.
    """
    shown = ShownConsole(log_of(folder, 0), sys.stdout.buffer, sys.stderr.buffer)
    with HostRanks(command, hosts, folder, shown) as ranks, shown.following_size():
        ended = run_crew(command, hosts.layout.size, folder, ranks, shows=show, asked=shown.hide)
    if ended.why is not None:
        show(-1, f"quorate: {ended.why}\n")
    return ended


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    return True


def _towards(far: Sequence[str]) -> str:
    """This machine's address on the way to the first of these; empty where there is none."""
    for address in far:
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        with suppress(OSError), socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # nothing is sent
            return str(probe.getsockname()[0])
    return ""
