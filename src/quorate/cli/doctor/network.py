"""How workers reach each other here: loopback, sockets, the machine's own name, torchrun."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.wire.real.trust import LEAST_TOKEN
from quorate.wire.socket_folder import LONGEST_PATH, make_socket_folder

TORCHRUN_PORT = 29500
_SHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


@dataclass(frozen=True, kw_only=True)
class SocketFacts:
    """Unix sockets, by which the workers of one machine talk."""

    wanted: str
    """The folder for temporary files."""
    folder: str
    """The one that a run takes, which has a short path."""
    error: str | None
    """Why no socket could be made there; None: it could."""


@dataclass(frozen=True, kw_only=True)
class NameFacts:
    """What this machine calls itself, and where that leads."""

    name: str
    address: str | None
    """None: nowhere."""
    is_ours: bool
    """Whether one can listen at that address."""
    interface: str | None
    """GLOO_SOCKET_IFNAME."""


@dataclass(frozen=True, kw_only=True)
class TorchrunFacts:
    """What a start by torchrun would meet."""

    is_there: bool
    port_is_free: bool
    shared_store: str | None
    """TORCH_DISABLE_SHARE_RDZV_TCP_STORE."""


def probe_loopback() -> str | None:
    """Send a byte over it: None if it came, else what went wrong."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(2)
            with socket.create_connection(listener.getsockname(), timeout=2) as caller:
                answer, _ = listener.accept()
                with answer:
                    answer.settimeout(2)
                    caller.sendall(b"?")
                    return None if answer.recv(1) == b"?" else "what was sent did not come"
    except OSError as error:
        return str(error)


def judge_loopback(error: str | None) -> Finding:
    """gloo's processes of one machine meet over it."""
    if error is not None:
        return fail("loopback", f"127.0.0.1: {error}", "bring it up: ip link set lo up; see to the firewall")
    return ok("loopback", "127.0.0.1 listens, connects and carries; ports are free")


def probe_sockets() -> SocketFacts:
    """Listen at a Unix socket, in a folder made as a run makes it."""
    wanted = tempfile.gettempdir()
    folder = None
    try:
        folder = make_socket_folder()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "board"))
            listener.listen()
    except OSError as error:
        return SocketFacts(wanted=wanted, folder=wanted if folder is None else str(folder.parent), error=str(error))
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    return SocketFacts(wanted=wanted, folder=str(folder.parent), error=None)


def judge_sockets(facts: SocketFacts) -> Finding:
    """A socket's path is short: systems allow some hundred bytes."""
    if facts.error is not None:
        return fail("unix sockets", f"below {facts.folder}: {facts.error}", "set TMPDIR to a local folder")
    if facts.folder != facts.wanted:
        found = f"below {facts.folder}; {facts.wanted} is too long for paths of {LONGEST_PATH} bytes"
        return warn("unix sockets", found, "set TMPDIR to a shorter path, if it is not to be that one")
    return ok("unix sockets", f"below {facts.folder}")


def probe_name() -> NameFacts:
    """Resolve this machine's name, and try whether the address is its own."""
    name = socket.gethostname()
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    try:
        family, kind, _, _, address = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0]
    except OSError:
        return NameFacts(name=name, address=None, is_ours=False, interface=interface)
    try:
        with socket.socket(family, kind) as probe:
            probe.bind(address)
        is_ours = True
    except OSError:
        is_ours = False
    return NameFacts(name=name, address=str(address[0]), is_ours=is_ours, interface=interface)


def judge_name(facts: NameFacts) -> Finding:
    """gloo looks for the interface to talk over by this name, and falls back to loopback."""
    if facts.interface is not None:
        return ok("host name", f"{facts.name}; GLOO_SOCKET_IFNAME names the interface {facts.interface}")
    fix = f"add a line for {facts.name} to /etc/hosts, or set GLOO_SOCKET_IFNAME to an interface (ip link)"
    if facts.address is None:
        return warn("host name", f"{facts.name} leads nowhere: enough here, not between machines", fix)
    if not facts.is_ours:
        return warn("host name", f"{facts.name} leads to {facts.address}, which is not this machine", fix)
    return ok("host name", f"{facts.name} leads to {facts.address}")


def probe_torchrun() -> TorchrunFacts:
    """Look for it, and for its usual port."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", TORCHRUN_PORT))
        is_free = True
    except OSError:
        is_free = False
    return TorchrunFacts(
        is_there=Path(sys.executable).with_name("torchrun").exists() or shutil.which("torchrun") is not None,
        port_is_free=is_free,
        shared_store=os.environ.get(_SHARED_STORE),
    )


def judge_torchrun(facts: TorchrunFacts) -> Finding:
    """A restart by torchrun meets the addresses of the dead in the store it shares, unless told not to share it."""
    if not facts.is_there:
        return ok("torchrun", "not on the path; quorate run does without it")
    if not facts.port_is_free:
        return warn(
            "torchrun", f"its port {TORCHRUN_PORT} is taken", "torchrun --standalone, or --master-port with another one"
        )
    if facts.shared_store != "1":
        told = "after a death, --max-restarts meets stale addresses in most cases"
        return warn("torchrun", told, f"before torchrun --max-restarts: export {_SHARED_STORE}=1")
    return ok("torchrun", f"port {TORCHRUN_PORT} is free; {_SHARED_STORE}=1")


def probe_token() -> str | None:
    """The secret that machines of one run have in common; None where none is set."""
    return os.environ.get("QUORATE_TOKEN")


def judge_token(token: str | None) -> Finding:
    """Only runs over several machines need one."""
    if token is None:
        return ok("token", "QUORATE_TOKEN is not set: runs on this machine need none, runs over several do")
    length = len(token.strip())
    if length < LEAST_TOKEN:
        fix = f"set it to {LEAST_TOKEN} characters at least, the same on every machine: openssl rand -hex 32"
        return warn("token", f"QUORATE_TOKEN has {length} characters", fix)
    return ok("token", f"QUORATE_TOKEN has {length} characters")
