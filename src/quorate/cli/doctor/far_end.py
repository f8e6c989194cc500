"""The program of `quorate doctor --hosts` on each host. It is sent as text, and needs only Python 3.8.

Reads a JSON object a line from stdin, `{"do": NAME, ...}`, and answers each with one; ends with stdin.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Answer = dict[str, Any]

SECONDS = 1.0
"""Duration of a measurement of bandwidth."""
WITHIN = 3.0
"""Time limit of a connection, in seconds."""
HEADERS = 28
"""Bytes of the headers of a datagram over IPv4."""
_CHUNK = bytes(1 << 18)
_SIOCGIFADDR, _SIOCGIFMTU = 0x8915, 0x8921
_DISCOVER, _PROBE = 10, 3
"""IP_MTU_DISCOVER, IP_PMTUDISC_PROBE: packets are not fragmented, whatever path MTU is known."""


def about(packages: Sequence[str]) -> Answer:
    """Return the versions of Python and of `packages` on this host; None for a package that is missing."""
    versions: dict[str, str | None] = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "host": socket.gethostname(),
        "versions": versions,
    }


def day() -> Answer:
    """Return the time of day, in seconds since 1970."""
    return {"day": time.time()}


def resolve(name: str) -> Answer:
    """Return the IPv4 address of a name on this host."""
    return {"address": socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]}


def towards(address: str) -> Answer:
    """Return this host's address towards `address`, its interface, and the MTU (None: unknown)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        local_address = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            wanted = struct.pack("256s", name.encode()[:15])
            try:
                if socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, wanted)[20:24]) == local_address:
                    reply = fcntl.ioctl(probe.fileno(), _SIOCGIFMTU, wanted)
                    return {"address": local_address, "interface": name, "mtu": struct.unpack("I", reply[16:20])[0]}
            except OSError:
                continue
    return {"address": local_address, "interface": None, "mtu": None}


def listen(address: str, port: int) -> Answer:
    """Listen for connections, and on the same port for datagrams; port 0 takes a free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(16)
    where = listener.getsockname()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(where)
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    threading.Thread(target=_answer, args=(datagrams,), daemon=True).start()
    return {"port": where[1]}


def _accept(listener: socket.socket) -> None:
    while True:
        threading.Thread(target=_serve, args=(listener.accept()[0],), daemon=True).start()


def _serve(sock: socket.socket) -> None:
    with sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = sock.recv(1)
        while request == b"?":
            sock.sendall(b"!")
            request = sock.recv(1)
        if request == b"#":
            begin, count = time.monotonic(), 0
            sock.settimeout(2 * SECONDS)
            try:
                while time.monotonic() - begin < 1.5 * SECONDS:
                    more = len(sock.recv(1 << 20))
                    if not more:
                        break
                    count += more
            except OSError:
                pass  # what came counts
            sock.sendall(struct.pack("!Qd", count, time.monotonic() - begin))


def _answer(datagrams: socket.socket) -> None:
    while True:
        datagram, source = datagrams.recvfrom(1 << 16)
        datagrams.sendto(struct.pack("!I", len(datagram)), source)


def connect(address: str, port: int) -> Answer:
    """Connect and close; return the seconds, or the error."""
    begin = time.monotonic()
    try:
        with socket.create_connection((address, port), timeout=WITHIN):
            return {"seconds": time.monotonic() - begin}
    except socket.timeout:  # noqa: UP041 - another name for TimeoutError since Python 3.10 only
        return {"error": "timed out"}
    except OSError as error:
        return {"error": os.strerror(error.errno) if error.errno else str(error)}


def ping(address: str, port: int, times: int) -> Answer:
    """Return the median round trip of a byte over one connection, in seconds."""
    times_taken = []
    with socket.create_connection((address, port), timeout=WITHIN) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(times):
            begin = time.monotonic()
            sock.sendall(b"?")
            if not sock.recv(1):
                raise ConnectionResetError
            times_taken.append(time.monotonic() - begin)
    return {"seconds": sorted(times_taken)[len(times_taken) // 2]}


def fill(address: str, port: int) -> Answer:
    """Return the bandwidth to `address`, in bytes per second, measured for `SECONDS`."""
    with socket.create_connection((address, port), timeout=WITHIN) as sock:
        until = time.monotonic() + SECONDS
        sock.sendall(b"#")
        sock.settimeout(0.2)
        while time.monotonic() < until:
            try:
                sock.send(_CHUNK)
            except socket.timeout:  # noqa: UP041 - another name for TimeoutError since Python 3.10 only
                continue
            except OSError:
                break  # it has measured for long enough
        try:
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has closed already
        sock.settimeout(WITHIN + SECONDS)
        reply = b""
        while len(reply) < 16:
            more = sock.recv(16 - len(reply))
            if not more:
                raise ConnectionResetError("the connection closed before the answer was complete")
            reply += more
    count, seconds = struct.unpack("!Qd", reply)
    return {"rate": count / seconds}


def datagrams(address: str, port: int, mtu: int) -> Answer:
    """Return whether a datagram of one byte arrives, and one of the size of the MTU."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, _DISCOVER, _PROBE)
        sock.settimeout(0.3)
        sock.connect((address, port))
        return {"small": _comes(sock, 1), "large": _comes(sock, mtu - HEADERS)}


def _comes(sock: socket.socket, size: int) -> bool:
    for _ in range(4):
        try:
            sock.send(bytes(size))
            while True:
                if struct.unpack("!I", sock.recv(4))[0] == size:
                    return True
        except OSError:
            continue
    return False


DOES: dict[str, Callable[..., Answer]] = {
    function.__name__: function for function in (about, day, resolve, towards, listen, connect, ping, fill, datagrams)
}


def main() -> None:
    """Answer questions until the end of stdin."""
    for line in sys.stdin.buffer:
        question = json.loads(line)
        try:
            answer = DOES[question.pop("do")](**question)
        except OSError as error:
            answer = {"failed": os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
