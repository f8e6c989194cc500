"""How workers reach each other on this machine: ports, the machine's own name, the token between hosts."""

from __future__ import annotations

import os
import socket
from typing import Any

from quorate.cli.doctor.findings import Finding, fail, ok, warn
from quorate.wire.real.trust import LEAST_TOKEN

MASTER_PORT = 29500


def master_port() -> int:
    """Return `MASTER_PORT`, or the port that torch takes without it."""
    port = os.environ.get("MASTER_PORT", "")
    return int(port) if port.isdecimal() and 0 < int(port) < 65536 else MASTER_PORT


def ports() -> Finding:
    """Judge loopback, over which processes meet, and the port of torchrun."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(2)
            with socket.create_connection(listener.getsockname(), timeout=2) as caller:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(2)
                    caller.sendall(b"?")
                    connection.recv(1)
    except OSError as error:
        return fail(f"127.0.0.1: {error}", "bring it up: ip link set lo up; see to the firewall")
    port = master_port()
    if not _can_bind(("127.0.0.1", port)):
        return warn(f"{port}, torchrun's, is taken", "quorate run takes another; else: torchrun --standalone")
    return ok(f"127.0.0.1 listens and connects; {port} is free")


def host_name() -> Finding:
    """Judge the host name, by which gloo looks for its interface; gloo falls back to loopback."""
    name, interface = socket.gethostname(), os.environ.get("GLOO_SOCKET_IFNAME")
    if interface is not None:
        return ok(f"{name}; GLOO_SOCKET_IFNAME={interface}")
    fix = f"add {name} to /etc/hosts, or set GLOO_SOCKET_IFNAME to an interface (ip link)"
    try:
        family, kind, _, _, address = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0]
    except OSError:
        return warn(f"{name} leads nowhere: enough here, not between hosts", fix)
    if not _can_bind(address, family, kind):
        return warn(f"{name} leads to {address[0]}, which is not this machine", fix)
    return ok(f"{name} leads to {address[0]}")


def token() -> Finding:
    """Judge `QUORATE_TOKEN`, the secret that the hosts of a run share."""
    length = len(os.environ.get("QUORATE_TOKEN", "").strip())
    if "QUORATE_TOKEN" not in os.environ:
        return ok("QUORATE_TOKEN is not set; only runs on several hosts need it")
    if length < LEAST_TOKEN:
        fix = f"set {LEAST_TOKEN} characters or more, the same on every host: openssl rand -hex 32"
        return warn(f"QUORATE_TOKEN has {length} characters", fix)
    return ok(f"QUORATE_TOKEN has {length} characters")


def _can_bind(address: Any, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> bool:
    try:
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError:
        return False
    return True
