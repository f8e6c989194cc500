"""Settings of a worker of a run on several machines: the token, and the address at which others reach it."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

from quorate.core.errors import ConfigurationError
from quorate.core.quantities import seconds_from
from quorate.wire.replicated.limits import Limits

_SIOCGIFADDR = 0x8915
_CONGESTION = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"
_DISCARD = 9
"""A port; nothing is sent to it."""


_KEY_OF_JOB = "OMPI_MCA_orte_precondition_transports"
"""A random key of mpirun of Open MPI 4 for each job, which only the processes of the job have."""


def token_here() -> str:
    """The secret that all workers of a run between machines have in common; empty where there is none."""
    return os.environ.get("QUORATE_TOKEN", "").strip() or os.environ.get(_KEY_OF_JOB, "")


def is_encrypted_here() -> bool:
    """Whether QUORATE_TLS asks that workers on other hosts are spoken to in TLS."""
    written = os.environ.get("QUORATE_TLS", "").strip()
    if written not in ("", "0", "1"):
        raise ConfigurationError(f"QUORATE_TLS={written} must be 1 (encrypt) or 0")
    return written == "1"


def congestion_here() -> str:
    """The congestion control of TCP that QUORATE_CONGESTION names, such as `cubic`; empty: the system's default.

    Raises `ConfigurationError` where the system does not have it, or does not let this user choose it.
    """
    written = os.environ.get("QUORATE_CONGESTION", "").strip()
    if not written:
        return ""
    if not sys.platform.startswith("linux"):
        raise ConfigurationError(f"QUORATE_CONGESTION={written} can be set on Linux only; unset it")
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, written.encode())
        except OSError as error:
            known = ""
            with suppress(OSError):
                known = f"; this user may choose {', '.join(Path(_CONGESTION).read_text().split())}"
            raise ConfigurationError(f"QUORATE_CONGESTION={written}: {error.strerror}{known}") from None
    return written


def limits_here() -> Limits:
    """Return the limits of QUORATE_SILENCE, such as `5s` or `500ms`, after which a remote worker counts as dead."""
    written = os.environ.get("QUORATE_SILENCE", "").strip()
    return Limits(seconds_from(written, f"QUORATE_SILENCE={written}")) if written else Limits()


def address_here() -> str:
    """The address of this machine that the others reach: QUORATE_HOST, else the one from which MASTER_ADDR is reached.

    Raises `ConfigurationError` where that is none, or one that only this machine can reach.
    """
    named = os.environ.get("QUORATE_HOST", "").strip()
    if named:
        address = _resolved(named, f"QUORATE_HOST={named}")
    else:
        master = os.environ.get("MASTER_ADDR") or socket.gethostname()
        address = _towards(master)
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        raise ConfigurationError(
            f"the workers are on several machines, and {address} is reached from this one only; set QUORATE_HOST to "
            f"the address of {socket.gethostname()} that the others reach"
        )
    return address


def interface_of(address: str) -> str | None:
    """Return the name of the interface with this IPv4 address; None if it is unknown."""
    if not sys.platform.startswith("linux"):
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def _resolved(name: str, shown: str) -> str:
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigurationError(f"{shown} is not an address of a machine: {error.strerror or error}") from None


def _towards(master: str) -> str:
    """Our own address on the way to `master`: asked of the routing table, nothing is sent."""
    address = _resolved(master, f"MASTER_ADDR={master}")
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, _DISCARD))
        except OSError as error:
            raise ConfigurationError(
                f"MASTER_ADDR={master} cannot be reached from here ({error.strerror or error})"
            ) from None
        own: str = probe.getsockname()[0]
        return own
