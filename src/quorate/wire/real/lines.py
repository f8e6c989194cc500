"""Short messages between the hosts of a run, on separate connections, so that they do not wait behind tensors.

One connection each way, which proves, as those of a mailbox, that it knows the run's token. Unlike there a message may
be lost: if a worker is silent, its connection is opened again. So a cable that was cut for a while is used again soon
after it is repaired, however long the system would wait by then.

`Line` is this worker's own connection to one peer. Writing to it never waits.
"""

from __future__ import annotations

import errno
import json
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from quorate.core.telling import tell
from quorate.wire.real.arriving import NONCE, Arriving, Lobby, proof
from quorate.wire.real.encryption import Encrypted, Encryption, Impostor, address_of, check, split

_LONGEST = 1 << 28
"""Longest message, in bytes."""
_BEGIN = struct.Struct("!IH")
"""Begin of a message: length of its JSON, and rank of its sender."""


class _Messages:
    """The messages in a stream of bytes."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def got(self, more: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the messages that are complete now, each with its rank. Raises `ValueError` for other bytes."""
        self._bytes += more
        while len(self._bytes) >= _BEGIN.size:
            length, source = _BEGIN.unpack_from(self._bytes)
            if length > _LONGEST:
                raise ValueError(f"a message of {length} bytes is announced")
            end = _BEGIN.size + length
            if len(self._bytes) < end:
                return
            message = json.loads(self._bytes[_BEGIN.size : end])
            del self._bytes[:end]
            yield source, message


class Lines:
    """The lines of one worker. Their thread, which `begin` starts, runs the tasks of `do`. Only it sends.

    `step(now)` is called at least every `every` seconds, and before events: `received(source, message)`, and
    `closed(peer)` when the peer's process, or its system, has ended a connection. After them it calls `flush()`.
    """

    def __init__(
        self,
        rank: int,
        host: str,
        key: bytes,
        *,
        every: float,
        patience: float,
        received: Callable[[int, dict[str, Any]], None],
        closed: Callable[[int], None],
        step: Callable[[float], None],
        flush: Callable[[], None],
        encryption: Encryption | None = None,
    ) -> None:
        self._received, self._is_over, self._step, self._flush = received, closed, step, flush
        self._rank, self._key, self._patience, self._encryption = rank, key, patience, encryption
        self.every = every
        """Seconds between two steps, at most."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self._listener.setblocking(False)
        self.address = address_of(host, self._listener.getsockname()[1], encryption)
        self._addresses = dict[int, str]()
        self._lines = dict[int, Line]()
        self._new = dict[int, Line]()
        """New lines that replace one without an answer."""
        self._refused = set[int]()
        """Peers at whose address another process has answered."""
        self._heard = dict[int, float]()
        self._arriving = dict[Arriving, _Messages]()
        self._lobby = Lobby()
        self._selector = selectors.DefaultSelector()
        self._wake, self._wakes = socket.socketpair()
        for end in (self._wake, self._wakes):
            end.setblocking(False)
        self._tasks: list[Callable[[], None]] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="quorate-lines", daemon=True)

    def begin(self, addresses: Mapping[int, str]) -> None:
        """Start the thread."""
        self._addresses.update(addresses)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._wakes, selectors.EVENT_READ, None)
        self._thread.start()

    def do(self, task: Callable[[], None]) -> None:
        """Let the thread run `task`; from any thread."""
        self._tasks.append(task)
        with suppress(OSError):
            self._wake.send(b"!")

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        with suppress(OSError):
            self._wake.send(b"!")
        if self._thread.ident is not None:
            self._thread.join(2.0)
        self._wake.close()
        self._wakes.close()

    def know(self, peer: int, address: str) -> None:
        """Set the address of `peer`."""
        self._addresses[peer] = address

    def send(self, to: int, message: Mapping[str, Any]) -> None:
        """Send a message, which may be lost."""
        if to not in self._addresses:
            return
        now = time.monotonic()
        line = self._lines.get(to)
        if line is None:
            line = self._open(to, self._lines)
        elif now - max(self._heard.get(to, 0.0), line.since) > self._patience:
            new = self._new.get(to)
            if new is None or now - new.since > self._patience:
                self._end(new)
                self._open(to, self._new)
        text = json.dumps(message).encode()
        data = _BEGIN.pack(len(text), self._rank) + text
        for target in (line, self._new.get(to)):
            if target is not None:
                target.add(data)
                self._serve(target, 0)

    # -- the thread

    def _run(self) -> None:
        while not self._closed:
            events = self._selector.select(self.every)
            self._step(time.monotonic())
            for key, mask in events:
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wakes:
                    with suppress(BlockingIOError):
                        self._wakes.recv(4096)
                elif isinstance(key.data, Arriving):
                    self._read(key.data)
                elif key.data.sock.fileno() >= 0:
                    self._serve(key.data, mask)
            tasks, self._tasks = self._tasks, []
            for task in tasks:
                task()
            for late in self._lobby.overdue():
                self._drop(late)
            self._flush()
        for end in (self._listener, *(line.sock for line in (*self._lines.values(), *self._new.values()))):
            end.close()
        for arriving in self._arriving:
            arriving.close()
        self._selector.close()

    def _open(self, peer: int, among: dict[int, Line]) -> Line | None:
        try:
            line = among[peer] = Line(peer, self._addresses[peer], self._key, self._encryption)
        except OSError:
            return None
        self._selector.register(line.sock, line.waits_for, line)
        return line

    def _look_after(self, line: Line) -> None:
        if line.waits_for != line.wants:
            line.waits_for = line.wants
            self._selector.modify(line.sock, line.wants, line)

    def _serve(self, line: Line, mask: int) -> None:
        try:
            if mask & selectors.EVENT_READ or (mask and not line.is_open):
                line.read()
                if line.is_open and self._new.get(line.peer) is line:
                    self._end(self._lines.get(line.peer))
                    self._lines[line.peer] = self._new.pop(line.peer)
            if line.is_open:
                line.write()
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(line)
            if isinstance(error, Impostor) and line.peer not in self._refused:
                self._refused.add(line.peer)
                tell(f"quorate: rank {self._rank} {error}\n")
            if self._lines.get(line.peer) is line:
                del self._lines[line.peer]
                if isinstance(error, ConnectionError) and not isinstance(error, Impostor):
                    self._over(line.peer)
            return
        self._look_after(line)

    def _end(self, line: Line | None) -> None:
        if line is not None and line.sock.fileno() >= 0:
            self._selector.unregister(line.sock)
            line.sock.close()

    def _over(self, peer: int) -> None:
        """Report that a peer's process has ended, unless it has connected again."""
        if not any(arriving.source == peer for arriving in self._arriving):
            self._is_over(peer)

    def _accept(self) -> None:
        with suppress(BlockingIOError, OSError):
            arriving = Arriving(self._listener.accept()[0], self._encryption)
            self._selector.register(arriving.sock, selectors.EVENT_READ, arriving)
            self._arriving[arriving] = _Messages()
            self._lobby.enter(arriving)

    def _read(self, arriving: Arriving) -> None:
        try:
            if arriving in self._lobby:
                if arriving.prove(self._key):
                    self._lobby.leave(arriving)
                return
            more = arriving.sock.recv(1 << 18)
            if not more:
                raise ConnectionResetError
            for source, message in self._arriving[arriving].got(more):
                if source not in self._addresses and message["kind"] != "hello":
                    raise ValueError("a message from an unknown sender")
                arriving.source = source
                self._heard[source] = time.monotonic()
                self._received(source, message)
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            self._drop(arriving)

    def _drop(self, arriving: Arriving) -> None:
        self._lobby.leave(arriving)
        if arriving in self._arriving:
            del self._arriving[arriving]
            self._selector.unregister(arriving.sock)
            arriving.close()
            if arriving.source is not None:
                self._over(arriving.source)


_MOST_BYTES = 1 << 22
"""Most bytes that wait in one connection; further messages are lost."""


class Line:
    """One line; `wants` are the events to wait for, before `read` and `write`."""

    def __init__(self, peer: int, address: str, key: bytes, encryption: Encryption | None) -> None:
        self.peer, self.since, self.is_open = peer, time.monotonic(), False
        self._key, self._nonce, self._address, self._encryption = key, b"", address, encryption
        self._out = bytearray()
        host, _, port = split(address)[1].rpartition(":")
        self.sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        failed = self.sock.connect_ex((host, int(port)))
        if failed not in (0, errno.EINPROGRESS):
            self.sock.close()
            raise OSError(failed, "cannot connect")
        self.waits_for = self.wants

    @property
    def wants(self) -> int:
        """The events to wait for."""
        if self._encryption is not None and not isinstance(self.sock, Encrypted):
            return selectors.EVENT_WRITE  # the other side waits for the begin of the handshake
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.is_open and self._out else 0)

    def add(self, data: bytes) -> None:
        """Queue `data`; nothing is sent yet."""
        if len(self._out) + len(data) <= _MOST_BYTES:
            self._out += data

    def read(self) -> None:
        """Read the nonce, the only bytes of the other side. Raises `OSError` where it has ended."""
        if self._encryption is not None:
            self._shake_hands(self._encryption)
        more = self.sock.recv(NONCE if self.is_open else NONCE - len(self._nonce))
        if not more or self.is_open:
            raise ConnectionResetError
        self._nonce += more
        if len(self._nonce) == NONCE:
            self.sock.send(proof(self._key, self._nonce))  # it fits a new connection
            self.is_open = True

    def _shake_hands(self, encryption: Encryption) -> None:
        if not isinstance(self.sock, Encrypted):
            failed = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed:
                raise OSError(failed, "cannot connect")
            self.sock = encryption.made(self.sock)
        if self.sock.version() is None:
            self.sock.do_handshake()
            check(self.sock, self._address)

    def write(self) -> None:
        """Write as much as the system accepts. Raises `OSError` where the connection has ended."""
        with suppress(BlockingIOError):
            while self._out:
                del self._out[: self.sock.send(self._out)]
