"""How workers reach each other here: loopback, sockets, the machine's own name, torchrun."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.wire.real.trust import LEAST_TOKEN
from quorate.wire.socket_folder import LONGEST_PATH, make_socket_folder

TORCHRUN_PORT = 29500
_SHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


def probe_loopback() -> str | None:
    """Send a byte over loopback; return None on success, else the error."""
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
    """Judge loopback, over which gloo's processes of one machine meet."""
    if error is not None:
        return fail("loopback", f"127.0.0.1: {error}", "bring it up: ip link set lo up; see to the firewall")
    return ok("loopback", "127.0.0.1 listens, connects and carries; ports are free")


def probe_sockets() -> tuple[str, str, str | None]:
    """Listen on a Unix socket, in a folder made as in a run.

    Return the folder for temporary files, the folder that a run takes, whose path is short, and the error or None.
    """
    wanted, folder, error = tempfile.gettempdir(), None, None
    try:
        folder = make_socket_folder()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "board"))
            listener.listen()
    except OSError as failed:
        error = str(failed)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    return wanted, wanted if folder is None else str(folder.parent), error


def judge_sockets(facts: tuple[str, str, str | None]) -> Finding:
    """Judge Unix sockets: systems allow paths of some hundred bytes."""
    wanted, folder, error = facts
    if error is not None:
        return fail("unix sockets", f"below {folder}: {error}", "set TMPDIR to a local folder")
    if folder != wanted:
        sentence = f"below {folder}; {wanted} is too long for paths of {LONGEST_PATH} bytes"
        return warn("unix sockets", sentence, "set TMPDIR to a shorter path, if it is not to be that one")
    return ok("unix sockets", f"below {folder}")


def probe_name() -> tuple[str, str | None, bool, str | None]:
    """Return this machine's name, its address (None: none), whether it is its own, and GLOO_SOCKET_IFNAME."""
    name, interface = socket.gethostname(), os.environ.get("GLOO_SOCKET_IFNAME")
    try:
        family, kind, _, _, address = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0]
    except OSError:
        return name, None, False, interface
    return name, str(address[0]), _can_bind(address, family, kind), interface


def judge_name(facts: tuple[str, str | None, bool, str | None]) -> Finding:
    """Judge the host name, by which gloo looks for its interface; gloo falls back to loopback."""
    name, address, is_ours, interface = facts
    if interface is not None:
        return ok("host name", f"{name}; GLOO_SOCKET_IFNAME names the interface {interface}")
    fix = f"add a line for {name} to /etc/hosts, or set GLOO_SOCKET_IFNAME to an interface (ip link)"
    if address is None:
        return warn("host name", f"{name} leads nowhere: enough here, not between machines", fix)
    if not is_ours:
        return warn("host name", f"{name} leads to {address}, which is not this machine", fix)
    return ok("host name", f"{name} leads to {address}")


def probe_torchrun() -> tuple[bool, bool, str | None]:
    """Return whether torchrun exists, whether its port is free, and TORCH_DISABLE_SHARE_RDZV_TCP_STORE."""
    is_there = Path(sys.executable).with_name("torchrun").exists() or shutil.which("torchrun") is not None
    return is_there, _can_bind(("127.0.0.1", TORCHRUN_PORT)), os.environ.get(_SHARED_STORE)


def judge_torchrun(facts: tuple[bool, bool, str | None]) -> Finding:
    """Judge torchrun: after a restart its shared store has the addresses of dead workers."""
    is_there, port_is_free, shared_store = facts
    if not is_there:
        return ok("torchrun", "not on the path; quorate run does without it")
    if not port_is_free:
        fix = "torchrun --standalone, or --master-port with another one"
        return warn("torchrun", f"its port {TORCHRUN_PORT} is taken", fix)
    if shared_store != "1":
        sentence = "after a death, --max-restarts meets stale addresses in most cases"
        return warn("torchrun", sentence, f"before torchrun --max-restarts: export {_SHARED_STORE}=1")
    return ok("torchrun", f"port {TORCHRUN_PORT} is free; {_SHARED_STORE}=1")


def _can_bind(address: Any, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> bool:
    try:
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError:
        return False
    return True


def probe_token() -> str | None:
    """Return the secret that the hosts of a run share, or None."""
    return os.environ.get("QUORATE_TOKEN")


def judge_token(token: str | None) -> Finding:
    """Judge the token, which only runs over several machines need."""
    if token is None:
        return ok("token", "QUORATE_TOKEN is not set: runs on this machine need none, runs over several do")
    length = len(token.strip())
    if length < LEAST_TOKEN:
        fix = f"set it to {LEAST_TOKEN} characters at least, the same on every machine: openssl rand -hex 32"
        return warn("token", f"QUORATE_TOKEN has {length} characters", fix)
    return ok("token", f"QUORATE_TOKEN has {length} characters")
